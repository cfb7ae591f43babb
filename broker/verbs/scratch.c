#include "broker/verbs/scratch.h"
#include "broker/base/wake.h"
#include "proto/error.h"
#include <stddef.h>
#include <stdlib.h>

struct scratch_piece {
	struct scratch_piece *next;
	_Alignas(max_align_t) uint8_t bytes[];
};

void *verb_scratch(struct verb_call *call, size_t size)
{
	struct scratch_piece *piece;

	if (size > SIZE_MAX - sizeof(*piece))
		return NULL;
	piece = calloc(1, sizeof(*piece) + size);
	if (!piece)
		return NULL;
	piece->next = call->scratch->pieces;
	call->scratch->pieces = piece;
	return piece->bytes;
}

int verb_park_uid(struct verb_call *call, uint32_t uid, struct error *err)
{
	char *key = verb_scratch(call, WAKE_UID_KEY_SIZE);

	if (!key)
		return error_nomem(err, "the request");
	wake_uid_key(uid, key);
	call->wait_name = key;
	return VERB_PARK_NAME;
}

void scratch_deinit(struct scratch *scratch)
{
	struct scratch_piece *piece;

	while ((piece = scratch->pieces)) {
		scratch->pieces = piece->next;
		free(piece);
	}
}
