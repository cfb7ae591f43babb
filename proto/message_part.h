/*
 * Limits of messages, and the parts that many of them have.
 */
#pragma once
#include "proto/device_uuid.h"
#include "proto/tensor.h"
#include <stdbool.h>
#include <stdint.h>

/* Items of one batch. The limit makes each reply to a batch fit a frame. */
#define MESSAGE_MAX_ITEMS 256
#define MESSAGE_MAX_KEPT  64 /* versions of a bundle */
/* Members of a bundle, which are the places of one manifest. */
#define MESSAGE_MAX_PLACES 131072
/* Entries of the chunk list in the state table (shm/table.h). */
#define MESSAGE_MAX_CHUNKS 1024
/* Timelines of a session (shm/timeline.h). The first one is 1. */
#define MESSAGE_MAX_TIMELINES 64
/* Bytes of a command, a version, or the name of a status value. */
#define MESSAGE_MAX_TEXT 255
#define MESSAGE_MAX_NOTE 4095
/* The limit of times to live. It is longer than any use, and small enough that
 * deadlines do not overflow. */
#define MESSAGE_MAX_TTL_MS (UINT64_C(1) << 52)
/* Ranks of a communicator in host memory, and those of one node. */
#define MESSAGE_MAX_RANKS 64
/* Ranks of a communicator on devices, over all nodes. */
#define MESSAGE_MAX_WORLD    4096
#define MESSAGE_NCCL_ID_SIZE 128
#define MESSAGE_HANDLE_SIZE  96 /* of legacy IPC: cuda/handle.h */
#define MESSAGE_MAX_PARAMS   1024
#define MESSAGE_MAX_CAPS     16
#define TOKEN_SIZE           16
#define TICKET_SIZE          16

/* The body of a reply that is a page of a list. `next_cursor` is the cursor of
 * the next page; 0: there are no more. */
#define PAGE_OF(item)                                                          \
	{                                                                      \
		uint32_t n_items;                                              \
		item *items;                                                   \
		uint64_t next_cursor;                                          \
	}

/* One version of one tensor. */
struct slot_ref {
	uint32_t slot;
	uint64_t generation;
};

/* The point at which a tensor on a device is complete: when this counter has
 * this value, or when the event of this number is complete. */
struct fence {
	/* the session of the counter; 0: the tensor is complete */
	uint64_t session;
	/* less than MESSAGE_MAX_TIMELINES; 0: an event, if session is not 0 */
	uint32_t timeline;
	uint64_t value; /* 1 to TIMELINE_POISON - 1; 0 if session is 0 */
};

/* The type and place of a tensor: all that a client needs to use it. */
struct tensor_place {
	struct slot_ref ref;
	uint32_t chunk;   /* number that is never used again */
	uint64_t offset;  /* of the first element in the chunk, in bytes */
	uint64_t size;    /* of the view, in bytes */
	uint64_t version; /* of the name; 0: it has no name */
	struct tensor_type type;
	/* "": it has no name; also in replies to get and redeem, because the
	 * client knows the names */
	const char *name;
	struct fence fence;
	bool is_tainted; /* its writer died before its work was complete */
};

/* A chunk in a reply. The fds of the reply have the same order as their chunks.
 * A chunk with a handle has no fd. */
struct chunk_ref {
	uint32_t chunk;
	uint32_t index; /* index in the chunk list of the state table */
	uint64_t size;  /* in bytes */
	bool is_writable;
	/* If it is not the host, the fd exports device memory. The driver
	 * cannot enforce read-only access, so clients without the right to
	 * write are only asked to map it read-only. */
	struct device_uuid device;
	bool has_handle; /* legacy IPC: a handle instead of an fd */
	uint8_t handle[MESSAGE_HANDLE_SIZE];
};

/* The access class, with the same meaning as for files. */
struct access_class {
	uint32_t uid;  /* ignored in requests; the peer's uid is used */
	uint32_t gid;  /* GID_DEFAULT: the peer's primary group */
	uint32_t mode; /* permissions 0600..0666; 0 is 0600 */
};
#define GID_DEFAULT 0xffffffffu
