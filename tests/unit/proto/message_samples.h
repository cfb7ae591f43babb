/*
 * One message of each kind and direction, from message_golden.txt: the bytes
 * as they were when it was added, since what an older or newer version of
 * either side sends must be understood.
 *
 * A line has the direction, the kind, the form and hex digits. `full` has every
 * field, unless one excludes another; `least` has those that it cannot do
 * without.
 */
#pragma once
#include "proto/message.h"

enum direction { REQUEST, REPLY, MANIFEST };

struct sample {
	enum direction direction;
	uint16_t kind;
	char form[16];
	size_t size;
	uint8_t bytes[1024];
};

extern struct sample samples[256];
extern size_t n_samples;

void read_samples(void);
const struct sample *sample_of(enum direction direction, uint16_t kind,
			       const char *form);
/* Decoded; the caller deinits, or ends. */
struct request request_of(uint16_t kind, const char *form);
struct reply reply_of(uint16_t kind, const char *form);

struct bytes {
	uint8_t *data;
	size_t size;
};

/* Encoded; the caller frees the data. */
struct bytes request_bytes(const struct request *request);
struct bytes reply_bytes(const struct reply *reply);

/* Encode and decode: the code, with which there is a sentence. */
int pass_request(const struct request *request, struct request *ret);
int pass_reply(const struct reply *reply, struct reply *ret);
/* The same without the result. */
int refusal(const struct request *request);
int reply_refusal(const struct reply *reply);
/* These bytes are refused in a sentence that says so. */
int refusal_of_bytes(uint16_t kind, const void *bytes, size_t size,
		     const char *says);
