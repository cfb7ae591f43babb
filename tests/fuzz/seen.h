/*
 * What replies have given so far to any process of an input: ids, tensors and
 * secrets, which later requests use.
 */
#pragma once
#include "proto/message_field.h"
#include <stdint.h>

struct input;

void seen_clear(void);

/* Remember everything in a reply. */
void seen_reply(const struct reply *reply);

/* Choose a number of this kind, which is the `what` of its field; NULL: of any
 * kind. Returns 0 if there is none. */
uint64_t seen_number(struct input *input, const char *what);

struct slot_ref seen_ref(struct input *input);

/* Returns TICKET_SIZE bytes. */
const uint8_t *seen_key(struct input *input);
