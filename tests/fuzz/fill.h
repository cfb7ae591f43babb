/*
 * Makes requests of an input, field by field, from the tables of the protocol.
 */
#pragma once
#include <stdint.h>

struct input;
struct request;

/* Fill in a request of this kind. It is valid until the next call. */
void fill_request(struct input *input, uint16_t kind, struct request *ret);
