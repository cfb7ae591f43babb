/*
 * A client that can break the protocol: raw frames over a real socket, for
 * tests of requests that libfsdp would never send. An error that is not the
 * subject of a test (no memory, no reply) ends the process with a line on
 * stderr.
 *
 * If FSDP_TEST_DEVICES is set in the environment, requests that name no device
 * allocate on a device (memory.h), and bytes are counted there.
 */
#pragma once
#include "proto/frame.h"
#include "proto/message.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* One connection, and the last reply that it received. */
struct wire {
	int fd;
	uint64_t number; /* number of the last request */
	uint64_t session;
	uint8_t token[TOKEN_SIZE];
	int table_fd, refs_fd, doorbell_fd; /* -1 before hello */
	bool is_repeating;                  /* see wire_repeat.h */
	uint8_t buffer[FRAME_MAX_SIZE];
	/* Descriptors that the test did not take are closed by the next reply.
	 */
	struct frame frame;
	struct reply reply;
};

/* Connects without hello. Returns NULL with errno if no broker listens. */
struct wire *wire_connect(const char *path);
/* Sends hello. Returns the code of the reply. */
int wire_hello(struct wire *wire, uint64_t budget);
/* Keeps the session and the descriptors of the reply that was received. */
void wire_take_session(struct wire *wire);
/* Connects and sends hello. Both must succeed. */
struct wire *wire_open(const char *path);
/* Closes the connection. Its session stays while the process lives. `wire` may
 * be NULL. */
void wire_close(struct wire *wire);
/* Ends the session and closes the connection. */
void wire_goodbye(struct wire *wire);

/* Returns FRAME_OK with `wire->frame` and `wire->reply`, or FRAME_EOF. */
int wire_receive(struct wire *wire);
/* Sends any body under any number. The caller keeps the descriptors. */
void wire_send_body(struct wire *wire, uint16_t kind, uint64_t number,
		    const void *body, size_t size, const int *fds,
		    uint16_t n_fds);
/* Sends under the number that `wire` has now. The caller keeps the
 * descriptors. */
void wire_resend(struct wire *wire, const struct request *request,
		 const int *fds, uint16_t n_fds);
/* Sends under the next number. */
void wire_send(struct wire *wire, const struct request *request);
/* Sends a request and receives its reply. Returns the code. */
int wire_call(struct wire *wire, const struct request *request);
/* Returns the reason why the last request was refused, or "" if it was not. */
const char *wire_sentence(const struct wire *wire);
/* Asserts that a call returned 0, or that its sentence contains a text. */
void wire_must(const struct wire *wire, int r);
void wire_says(const struct wire *wire, const char *part);

/* --- requests ------------------------------------------------------------ */

/* Makes a request for one tensor of `size` bytes, which `item` describes. It
 * waits without limit. */
struct request wire_alloc_request(struct alloc_item *item, int64_t size);
struct request wire_begin_request(const char *name, uint64_t size_hint);

/* --- calls; each gives the code ------------------------------------------ */

/* Allocates `n` bytes of u8 without a name. */
int wire_alloc(struct wire *wire, int64_t size,
	       const struct access_class *access, int32_t timeout_ms,
	       struct tensor_place *ret);
int wire_publish(struct wire *wire, const struct slot_ref *ref,
		 const char *name, uint32_t flags);
/* Allocates and releases. */
int wire_put(struct wire *wire, const char *name, int64_t size,
	     const struct access_class *access, struct tensor_place *ret);
int wire_get(struct wire *wire, const char *name, struct tensor_place *ret);
/* Releases one hold. */
int wire_release(struct wire *wire, const struct slot_ref *ref);
int wire_remove(struct wire *wire, const char *name);
/* Returns the descriptor of a chunk, which the caller owns, or the negative
 * code. */
int wire_chunk(struct wire *wire, uint32_t chunk);
/* Returns a value of the status. */
uint64_t wire_status(struct wire *wire, const char *name);
/* Polls the status until a value is as expected. */
void wire_wait_status(struct wire *wire, const char *name, uint64_t value);

/* --- counters ------------------------------------------------------------ */

/* Values that a refused request must not change: tensors, memory, sessions, and
 * the charges of the requesting user. */
#define WIRE_N_COUNTS 15
struct wire_counts {
	uint64_t values[WIRE_N_COUNTS];
};

void wire_count(struct wire *wire, struct wire_counts *ret);
uint64_t *wire_counts_at(struct wire_counts *counts, const char *name);
/* Returns the name of the first value that differs, or NULL if none does. */
const char *wire_counts_differ(const struct wire_counts *a,
			       const struct wire_counts *b);
