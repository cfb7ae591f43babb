/*
 * The folder that stands for the machine, and who has how much of its devices'
 * memory.
 *
 * An allocation is a file in the folder, memory.SERIAL, with the head below.
 * It lives as long as any open file description that has locked it: descriptors
 * that were duplicated or sent, and mappings, share one, so whatever keeps the
 * memory keeps the lock, and SIGKILL lets go of it. Files without a lock are
 * nobody's; they are found, and their memory given back, when room is short.
 *
 *   memory.SERIAL       allocations
 *   ipc.PID.ADDRESS     further names of those with a legacy handle
 *   event.PID.SERIAL    interprocess events
 *   process.PID         locked by each live process that has called cuInit()
 *   context.N           locked by each process with a context on device N
 *   lost.N              made by anybody: device N is lost
 *   calls.PID           see call.h
 *   ledger              sums; locked while any of this is changed
 *
 * LAYOUT of memory.SERIAL: the head at byte 0, the memory from LEDGER_HEAD on.
 * So a program that maps the descriptor itself, which no driver allows, does
 * not find its data there; nor does the file's size tell the memory's.
 */
#pragma once
#include "tests/fakes/cuda/settings.h"
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#define LEDGER_HEAD      65536 /* a multiple of any page size */
#define LEDGER_NAME_SIZE 64

enum ledger_kind {
	LEDGER_VMM,     /* cuMemCreate() */
	LEDGER_ALLOC,   /* cuMemAlloc() */
	LEDGER_CONTEXT, /* what a context takes */
};

struct ledger_head {
	uint64_t magic;
	uint64_t serial;
	uint64_t size;   /* of the memory */
	uint32_t device; /* as numbered on the machine */
	uint32_t kind;   /* enum ledger_kind */
	uint32_t handle_types;
	uint32_t is_rdma;
	int32_t maker; /* process */
	atomic_uint is_freed;
};

/* The folder's descriptor; the process ends with a sentence if there is none.
 * Thread-safe. */
int ledger_dir(void);

/* All below: with the process's lock. */
void ledger_open(void);

/*
 * A new allocation, with head->serial filled in: its descriptor, locked.
 * -ENOMEM: the device has no room; -errno of what went wrong else.
 */
int ledger_create(struct ledger_head *head);
/* A descriptor of an allocation that has the name; -ENOENT: nobody has it any
 * more. */
int ledger_find(const char *name);
/* Is it an allocation's descriptor, of whatever folder? */
bool ledger_is_memory(int fd);
/* Make the descriptor's own lock; no harm if there is one. */
void ledger_lock_file(int fd);
/* Somebody has let go of it: is it nobody's now? */
void ledger_settle(uint64_t serial, ino_t inode);
/* A further name for an allocation; an older one of that name goes. */
int ledger_link(uint64_t serial, const char *name);
void ledger_unlink(const char *name);

void ledger_name(uint64_t serial, char ret[LEDGER_NAME_SIZE]);
/* Bytes in use on a device now, by all processes. */
uint64_t ledger_count(unsigned int device);

/* Is this process, which called cuInit(), alive? */
bool ledger_has_process(pid_t pid);
/* Have a context on the device; a descriptor that keeps it, or -EBUSY. */
int ledger_enter(unsigned int device, bool is_exclusive);
