/*
 * IPC handles as they are sent between processes: the driver's 64 bytes, with
 * the facts that they lack.
 *
 * The driver's bytes alone are not enough. The driver recognises handles of its
 * own process by the process id, which can be the same in two containers; and a
 * new allocation at a freed address may get the bytes of the old one. So the
 * origin, a random number, identifies the process of a handle, and the
 * generation identifies the allocation (memory) or the hand-over (event).
 *
 * PyTorch puts a version and a type byte in front of the driver's bytes (66
 * bytes), and also accepts 64 bytes alone. Only the layout below is accepted
 * here.
 *
 * LAYOUT, native byte order, since handles never leave the node
 *
 * offset size  meaning
 *    0    1    version, HANDLE_VERSION
 *    1    1    kind
 *    2    6    0
 *    8    8    origin, not 0
 *   16    8    generation
 *   24    8    memory: bytes of the allocation; event: 0
 *   32   64    the driver's bytes
 *
 * A receiver must not trust any field: the sender can have written anything.
 */
#pragma once
#include "cuda/driver_api.h"
#include <stdint.h>

struct error;

#define HANDLE_VERSION 1
#define HANDLE_SIZE    96

enum handle_kind { HANDLE_MEMORY = 'm', HANDLE_EVENT = 'e' };

struct handle {
	uint8_t version;
	uint8_t kind;
	uint8_t reserved[6];
	uint64_t origin;
	uint64_t generation;
	uint64_t size;
	union {
		CUipcMemHandle memory;
		CUipcEventHandle event;
	};
};

/* Returns the origin of this process, which never changes. */
int handle_origin(uint64_t *ret, struct error *err);

/*
 * Checks and reads `size` bytes that another process has sent. Returns -EINVAL
 * if they have the wrong size, another kind or impossible contents, and -EPROTO
 * if they are of a newer version.
 */
int handle_decode(const void *bytes, size_t size, enum handle_kind kind,
		  struct handle *ret, struct error *err);
