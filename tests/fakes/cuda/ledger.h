/*
 * The folder that stands for the machine, and the record of its devices' memory
 * and of the processes that use it.
 *
 * An allocation is a file in the folder, memory.SERIAL, with the head below. It
 * lives as long as any open file description that has locked it. Descriptors
 * that were duplicated or sent, and mappings, share one, so whatever keeps the
 * memory keeps the lock, and SIGKILL releases it. Files without a lock have no
 * owner; they are found, and their memory is released, when room is short.
 *
 *   memory.SERIAL       allocations
 *   ipc.PID.ADDRESS     further names of those with a legacy handle
 *   event.PID.SERIAL    interprocess events
 *   process.PID         locked by each live process that has called cuInit()
 *   context.N           locked by each process with a context on device N
 *   lost.N              made by any process: device N is lost
 *   calls.PID           see call.h
 *   ledger              sums; locked while any of this is changed
 *
 * In memory.SERIAL, the head is at byte 0 and the memory begins at LEDGER_HEAD.
 * So a program that maps the descriptor itself, which no driver allows, does
 * not find its data there, and the file's size differs from the memory's.
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
	LEDGER_CONTEXT, /* used by a context */
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

/* Returns the folder's descriptor. The process ends with a sentence if there is
 * none. Thread-safe. */
int ledger_dir(void);

/* The caller of each function below holds the process's lock. */
void ledger_open(void);

/*
 * Makes a new allocation and fills in head->serial. Returns its locked
 * descriptor, -ENOMEM if the device has no room, or another -errno.
 */
int ledger_create(struct ledger_head *head);
/* Returns a descriptor of the allocation of that name, or -ENOENT if no process
 * has it any more. */
int ledger_find(const char *name);
/* Returns whether the descriptor is of an allocation, in any folder. */
bool ledger_is_memory(int fd);
/* Locks the descriptor, if it has no lock. */
void ledger_lock_file(int fd);
/* Called after a process has released the allocation. If it has no owner now,
 * its memory is released. */
void ledger_settle(uint64_t serial, ino_t inode);
/* Gives an allocation a further name. An older file of that name is removed. */
int ledger_link(uint64_t serial, const char *name);
void ledger_unlink(const char *name);

void ledger_name(uint64_t serial, char ret[LEDGER_NAME_SIZE]);

/* Returns whether this process, which called cuInit(), is alive. */
bool ledger_has_process(pid_t pid);
/* Registers a context on the device. Returns a descriptor that keeps it, or
 * -EBUSY. */
int ledger_enter(unsigned int device, bool is_exclusive);
