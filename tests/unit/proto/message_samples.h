/*
 * One message of each kind and direction, from message_golden.txt. The bytes
 * are those that the message had when it was added, because messages of an
 * older or newer version of either side must be understood.
 *
 * A line has the direction, the kind, the form and hex digits. `full` has every
 * field, unless one excludes another; `least` has only the required fields. A
 * message without fields has no line.
 */
#pragma once
#include "fsdp.pb-c.h"
#include "proto/message.h"

enum direction { REQUEST, REPLY, MANIFEST };

struct sample {
	enum direction direction;
	uint16_t kind;
	char form[16];
	size_t size;
	uint8_t bytes[1024];
};

extern struct sample samples[1024];
extern size_t n_samples;

void read_samples(void);
const struct sample *sample_of(enum direction direction, uint16_t kind,
			       const char *form);
const ProtobufCMessageDescriptor *descriptor_of(const struct sample *sample);
/* Returns the decoded sample. The caller calls its deinit function, or
 * exits. */
struct request request_of(uint16_t kind, const char *form);
struct reply reply_of(uint16_t kind, const char *form);

struct bytes {
	uint8_t *data;
	size_t size;
};

/* Returns the encoded sample. The caller frees the data. */
struct bytes request_bytes(const struct request *request);
struct bytes reply_bytes(const struct reply *reply);

/* Encode the message and decode it again. Returns the code. A refusal must have
 * a sentence. */
int pass_request(const struct request *request, struct request *ret);
int pass_reply(const struct reply *reply, struct reply *ret);
/* Do the same, and drop the result. */
int refusal(const struct request *request);
int reply_refusal(const struct reply *reply);
/* Check that these bytes are refused with a sentence that contains `says`. */
int refusal_of_bytes(uint16_t kind, const void *bytes, size_t size,
		     const char *says);
