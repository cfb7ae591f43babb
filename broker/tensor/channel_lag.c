#include "broker/tensor/channel_lag.h"
#include "broker/tensor/channel_buffer.h"
#include "broker/tensor/channel_resize.h"
#include "broker/tensor/store.h"
#include "proto/error.h"
#include "proto/failpoint.h"
#include "proto/message_channel.h"
#include <errno.h>

#define MS_NS INT64_C(1000000)

static void log_cut(struct store *store, struct channel_place place)
{
	const struct catalog *catalog = &store->catalog;
	const struct channel_record *record =
		catalog_channel(catalog, place.record);
	const struct session_record *session =
		catalog_session(catalog, record->users[place.place].session);
	uint32_t n;

	if (!log_limit_allows(&store->channels.cuts, &n))
		return;
	log_line(LOG_LEVEL_WARNING,
		 "process %u (%s), a consumer of channel '%.*s', was cut: it "
		 "kept an item for more than %u ms while a producer waited (%u "
		 "more consumers were cut since the last line)",
		 session->pid, session->command, (int)record->name_size,
		 (const char *)catalog_blob(catalog, record->name_blob),
		 record->lag_ms, n);
}

/* Cuts the consumers in `late`. A user of the channel may write any place to
 * the file, so a place without a consumer is ignored. The record changes first:
 * if the broker dies before it has changed all words, channels_adopt() changes
 * the others. */
static void cut(struct store *store, uint32_t channel, uint64_t late)
{
	struct channel_record *record =
		catalog_channel(&store->catalog, channel);
	struct slots_present present;

	for (uint32_t i = 0; i < SLOTS_USERS; i++) {
		struct channel_user *user = &record->users[i];

		if (!user->session || user->role != CHANNEL_CONSUMER)
			late &= ~slots_bit(i);
		if (!(late & slots_bit(i)) || user->is_ended)
			continue;
		catalog_set(&store->catalog, user->is_ended, 1);
		log_cut(store, (struct channel_place){channel, i});
	}
	catalog_commit(&store->catalog);
	failpoint("channel_lag.recorded");
	present = channel_present(record);
	slots_cut(&store->channels.slots[channel], &present, late);
}

static void replace_buffers(struct store *store, uint32_t channel)
{
	struct slots *slots = &store->channels.slots[channel];

	for (uint32_t i = 0; i < SLOTS_MAX; i++) {
		if (!slots_take_away(slots, i))
			continue;
		failpoint("channel_lag.taken_away");
		channel_drop_buffer(store, channel, i);
		channel_refill(store, channel);
	}
}

int channel_cut_late(struct store *store, struct channel_place place,
		     struct error *err)
{
	const struct channel_record *record =
		catalog_channel(&store->catalog, place.record);
	int64_t lag_ns = record->lag_ms * MS_NS;
	uint64_t late;

	if (!record->lag_ms ||
	    record->users[place.place].role != CHANNEL_PRODUCER)
		return error_set(err, -EINVAL,
				 "only a producer of a channel with a lag_ms "
				 "can cut consumers");
	late = slots_find_late(&store->channels.slots[place.record],
			       bell_now_ns() - lag_ns);
	if (late)
		cut(store, place.record, late);
	replace_buffers(store, place.record);
	channel_retire(store, place.record);
	return 0;
}
