/*
 * Limits of messages, and the parts that many of them have.
 */
#pragma once
#include "proto/device_uuid.h"
#include "proto/tensor.h"
#include <stdbool.h>
#include <stdint.h>

/* Per batch: so that every reply to a batch fits a frame. */
#define MESSAGE_MAX_ITEMS 256
#define MESSAGE_MAX_KEPT  64 /* versions of a bundle */
/* Members of a bundle: places in one manifest. */
#define MESSAGE_MAX_PLACES 131072
/* Entries of the state table's chunk list, see shm/table.h. */
#define MESSAGE_MAX_CHUNKS 1024
/* Timelines of a session, see shm/timeline.h; the first is 1. */
#define MESSAGE_MAX_TIMELINES 64
/* Bytes of a command, a version, the name of a status value. */
#define MESSAGE_MAX_TEXT 255
#define MESSAGE_MAX_NOTE 4095
/* Times to live: far beyond any use, and a deadline never overflows. */
#define MESSAGE_MAX_TTL_MS (UINT64_C(1) << 52)
/* Ranks of a communicator, parameters of a group, caps of its policy. */
#define MESSAGE_MAX_RANKS 64
/* Ranks of a communicator on devices, over all nodes. */
#define MESSAGE_MAX_WORLD    4096
#define MESSAGE_NCCL_ID_SIZE 128
#define MESSAGE_HANDLE_SIZE  96 /* of legacy IPC: cuda/handle.h */
#define MESSAGE_MAX_PARAMS   1024
#define MESSAGE_MAX_CAPS     16
#define TOKEN_SIZE           16
#define TICKET_SIZE          16

/* One version of one tensor. */
struct slot_ref {
	uint32_t slot;
	uint64_t generation;
};

/* When a tensor on a device is written: once this counter has this value, or
 * the event of this number is done. */
struct fence {
	uint64_t session;  /* whose; 0: it is written */
	uint32_t timeline; /* below MESSAGE_MAX_TIMELINES; 0: none, so it is an
			      event, if session is not 0 */
	uint64_t value;    /* above 0 and below TIMELINE_POISON; 0 if session is
			    */
};

/* Where a tensor lies and what it is: all a client needs to use it. */
struct tensor_place {
	struct slot_ref ref;
	uint32_t chunk;   /* id, never used again */
	uint64_t offset;  /* of the first element in the chunk, bytes */
	uint64_t size;    /* bytes of the view */
	uint64_t version; /* of the name; 0 if it has none */
	struct tensor_type type;
	const char *name; /* "" if it has none; replies to get and redeem leave
			     it out: whoever asked by name knows it */
	struct fence fence;
	bool is_tainted; /* its writer died before the work was done */
};

/* A chunk whose fd travels with this reply, in the order of the fds, or whose
 * handle does, which has none. */
struct chunk_ref {
	uint32_t chunk;
	uint32_t index; /* its entry in the state table's chunk list */
	uint64_t size;  /* bytes */
	bool is_writable;
	struct device_uuid device; /* not of the host: the fd is an export of
				      device memory, and whoever may not write
				      is only asked to map it read-only */
	bool has_handle;           /* legacy IPC: no fd, but this */
	uint8_t handle[MESSAGE_HANDLE_SIZE];
};

/* Access class as with files. */
struct access_class {
	uint32_t uid;  /* ignored in requests: the peer's */
	uint32_t gid;  /* GID_DEFAULT: the peer's primary group */
	uint32_t mode; /* permission bits 0600..0666; 0 means 0600 */
};
#define GID_DEFAULT 0xffffffffu
