/*
 * A client without manners: raw frames over a real socket, for tests of what
 * libfsdp would never send.
 *
 * What no test is about (no heap, no answer) ends the process with a line on
 * stderr.
 *
 * With FSDP_TEST_DEVICES set in the environment memory that is asked for in no
 * place is asked for on a device (memory.h), and bytes are counted there.
 */
#pragma once
#include "proto/frame.h"
#include "proto/message.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* One connection, and what it was last answered. */
struct wire {
	int fd;
	uint64_t number; /* of the last request */
	uint64_t session;
	uint8_t token[TOKEN_SIZE];
	int table_fd, refs_fd, doorbell_fd; /* -1 before the hello */
	bool is_repeating;                  /* wire_repeat.h */
	uint8_t buffer[FRAME_MAX_SIZE];
	struct frame frame; /* fds that nobody took go with the next one */
	struct reply reply;
};

/* A connection that has not said hello; NULL with errno: nobody there. */
struct wire *wire_connect(const char *path);
/* Say hello; gives the code of the answer. */
int wire_hello(struct wire *wire, uint64_t budget);
/* Keep the session and the descriptors of the reply that was received. */
void wire_take_session(struct wire *wire);
/* Both; it must go well. */
struct wire *wire_open(const char *path);
/* The connection; its session stays while the process lives. NULL is fine. */
void wire_close(struct wire *wire);
/* The session and the connection. */
void wire_goodbye(struct wire *wire);

/* FRAME_OK with `wire->frame` and `wire->reply`, or FRAME_EOF. */
int wire_receive(struct wire *wire);
/* A body under any number; fds stay the caller's. */
void wire_send_body(struct wire *wire, uint16_t kind, uint64_t number,
		    const void *body, size_t size, const int *fds,
		    uint16_t n_fds);
/* Under the number that `wire` has now; fds stay the caller's. */
void wire_resend(struct wire *wire, const struct request *request,
		 const int *fds, uint16_t n_fds);
/* Under the next number. */
void wire_send(struct wire *wire, const struct request *request);
/* One round trip; gives the code. */
int wire_call(struct wire *wire, const struct request *request);
/* Why the last request was refused; "" if it was not. */
const char *wire_sentence(const struct wire *wire);
/* Assert that a call gave 0, or that its sentence says this. */
void wire_must(const struct wire *wire, int r);
void wire_says(const struct wire *wire, const char *part);

/* --- requests ------------------------------------------------------------ */

/* For one tensor of `size` bytes, which `item` describes; waits for ever. */
struct request wire_alloc_request(struct alloc_item *item, int64_t size);
struct request wire_begin_request(const char *name, uint64_t size_hint);

/* --- calls; each gives the code ------------------------------------------ */

/* `n` bytes of u8, without a name. */
int wire_alloc(struct wire *wire, int64_t size,
	       const struct access_class *access, int32_t timeout_ms,
	       struct tensor_place *ret);
int wire_publish(struct wire *wire, const struct slot_ref *ref,
		 const char *name, uint32_t flags);
/* Both, and release. */
int wire_put(struct wire *wire, const char *name, int64_t size,
	     const struct access_class *access, struct tensor_place *ret);
int wire_get(struct wire *wire, const char *name, struct tensor_place *ret);
int wire_release(struct wire *wire, const struct slot_ref *ref, uint32_t n);
int wire_remove(struct wire *wire, const char *name);
/* The fd of a chunk (the caller's), or the negative code. */
int wire_chunk(struct wire *wire, uint32_t chunk);
/* One of the status's values. */
uint64_t wire_status(struct wire *wire, const char *name);
/* Ask for the status until a value is what it should be. */
void wire_wait_status(struct wire *wire, const char *name, uint64_t value);

/* --- counters ------------------------------------------------------------ */

/* What a refused request must leave as it is: tensors, memory, sessions, what
 * the asking user is charged. */
#define WIRE_N_COUNTS 15
struct wire_counts {
	uint64_t values[WIRE_N_COUNTS];
};

void wire_count(struct wire *wire, struct wire_counts *ret);
uint64_t *wire_counts_at(struct wire_counts *counts, const char *name);
/* The name of the first that differs; NULL: none. */
const char *wire_counts_differ(const struct wire_counts *a,
			       const struct wire_counts *b);
