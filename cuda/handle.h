/*
 * Handles of legacy IPC as they travel between processes: the driver's 64 bytes
 * and the facts that they lack.
 *
 * The driver's bytes alone are not enough. The driver recognises its own
 * process's handles by a process id, and ids repeat between containers; and a
 * new allocation at a freed address may get the bytes of the old one. So the
 * origin, a random number, identifies the process of a handle, and the
 * generation identifies the allocation (memory) or the hand-over (event).
 *
 * PyTorch puts a version and a type byte in front of the driver's bytes (66
 * bytes), and also accepts 64 bytes alone. Only the layout below is accepted
 * here.
 *
 * LAYOUT, native byte order, since handles never leave the node
 *   offset size  meaning
 *        0    1  version, HANDLE_VERSION
 *        1    1  kind
 *        2    6  0
 *        8    8  origin, not 0
 *       16    8  generation
 *       24    8  memory: bytes of the allocation; event: 0
 *       32   64  the driver's bytes
 *
 * A receiver must treat all of it as a claim of the sender.
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

/* Of this process; the same every time. */
int handle_origin(uint64_t *ret, struct error *err);

/*
 * Judge `size` bytes that came from elsewhere. -EINVAL: too short or long, not
 * of that kind, or with impossible contents; -EPROTO: of a newer version.
 */
int handle_decode(const void *bytes, size_t size, enum handle_kind kind,
		  struct handle *ret, struct error *err);
