/*
 * Items of a channel that consist of one number each.
 */
#pragma once
#include "client/fsdp_channel.h"

struct slots_page;

/* These end the test if the channel returns an error. */
void item_send_number(struct fsdp_channel *channel, uint64_t number);
uint64_t item_number(const struct fsdp_item *item);
/* The next item must be `number`. It is held until it is released or kept. */
struct fsdp_item *item_receive(struct fsdp_channel *channel, uint64_t number);

/* Returns the file of the last channel that this process has mapped, to write
 * to it as a hostile process would. */
struct slots_page *item_page(void);
