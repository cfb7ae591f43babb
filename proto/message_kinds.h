/*
 * The list of all requests. The row of a request defines its number, name,
 * codec, function in the broker, failpoints and tests.
 *
 * X(KIND, number, noun, request, reply, flags, time-out, bound)
 *
 * - `request` and `reply` name their bodies: struct <request>_request and
 *   struct <reply>_reply, whose fields are in the tables of message_request.c
 *   and message_reply.c. Several kinds may share one; `empty` has no fields.
 * - Flags: RECORDED means that the request changes the broker's state, so its
 *   reply is kept until the client has it, and it is never executed twice.
 *   GRANTS means that the reply gives holds of tensors to the client, and lists
 *   their chunks. TAKES_FD means that the request may have one descriptor. 0
 *   means that no flag is set.
 * - The time-out is the field `timeout_ms` of that request. The client may
 *   divide it into slices, and looks after its streams between them.
 * - The bound is the maximum size of a recorded reply without its chunks:
 * SMALL, or a size for each unit of that field of the request. message.c has
 * the sizes.
 *
 * The numbers are used on the wire, so they never change. docs/hacking.md shows
 * how to add a request.
 */
#pragma once

/* Rows are formatted by hand. */
/* clang-format off */

/* The requests of a connection, which begin and end a session. */
#define MESSAGE_CONNECTION_KINDS(X)                                            \
	X(HELLO, 1, hello, hello, hello, 0, NO_TIMEOUT, SMALL)                 \
	X(CHALLENGE, 2, challenge, challenge, hello, 0, NO_TIMEOUT, SMALL)     \
	X(GOODBYE, 3, goodbye, empty, empty, 0, NO_TIMEOUT, SMALL)

/* The requests of a session. verb_<noun>() in broker/verbs/ executes them. */
#define MESSAGE_VERB_KINDS(X)                                                  \
	X(PING, 4, ping, empty, empty, 0, NO_TIMEOUT, SMALL)                   \
	X(ALLOC, 5, alloc, alloc, places, RECORDED | GRANTS,                   \
	  TIMEOUT(alloc), PLACES(alloc.n_items))                               \
	X(PUBLISH, 6, publish, publish, versions, RECORDED,                    \
	  NO_TIMEOUT, VERSIONS(publish.n_items))                               \
	X(GET, 7, get, get, places, RECORDED | GRANTS,                         \
	  TIMEOUT(get), PLACES(get.n_names))                                   \
	X(RELEASE, 8, release, release, empty, RECORDED, NO_TIMEOUT, SMALL)    \
	X(REMOVE, 9, remove, remove, empty, RECORDED, NO_TIMEOUT, SMALL)       \
	X(TICKET, 10, ticket, ticket, ticket, RECORDED, NO_TIMEOUT, SMALL)     \
	X(REDEEM, 11, redeem, redeem, places, RECORDED | GRANTS,               \
	  NO_TIMEOUT, PLACES(redeem.n_tickets))                                \
	X(BUNDLE_BEGIN, 12, bundle_begin, bundle_begin, bundle, RECORDED,      \
	  TIMEOUT(bundle_begin), SMALL)                                        \
	X(BUNDLE_COMMIT, 13, bundle_commit, bundle_end, bundle, RECORDED,      \
	  NO_TIMEOUT, SMALL)                                                   \
	X(BUNDLE_ABORT, 14, bundle_abort, bundle_end, empty, RECORDED,         \
	  NO_TIMEOUT, SMALL)                                                   \
	X(BUNDLE_GET, 15, bundle_get, bundle_get, bundle_get,                  \
	  RECORDED | GRANTS, TIMEOUT(bundle_get), SMALL)                       \
	X(CHUNK, 16, chunk, chunk, chunks, 0, NO_TIMEOUT, SMALL)               \
	X(LIST, 17, list, list, list, 0, NO_TIMEOUT, SMALL)                    \
	X(WHO, 18, who, who, who, 0, NO_TIMEOUT, SMALL)                        \
	X(CLIENTS, 19, clients, page, clients, 0, NO_TIMEOUT, SMALL)           \
	X(STATUS, 20, status, status, status, 0, NO_TIMEOUT, SMALL)            \
	X(COMM_JOIN, 21, comm_join, comm_join, comm, RECORDED,                 \
	  NO_TIMEOUT, NCCL_ID)                                                 \
	X(COMM_LEAVE, 22, comm_leave, comm, empty, RECORDED,                   \
	  NO_TIMEOUT, SMALL)                                                   \
	X(COMM_REMOVE, 23, comm_remove, comm_remove, empty, RECORDED,          \
	  NO_TIMEOUT, SMALL)                                                   \
	X(GROUP, 24, group, group, group, RECORDED | GRANTS,                   \
	  NO_TIMEOUT, ENTRIES(group.n_params))                                 \
	X(UNSHARD, 25, unshard, unshard, work, RECORDED, NO_TIMEOUT, SMALL)    \
	X(RESHARD, 26, reshard, reshard, empty, RECORDED, NO_TIMEOUT, SMALL)   \
	X(INPUT, 27, input, input, places, RECORDED | GRANTS,                  \
	  NO_TIMEOUT, ONE_PLACE)                                               \
	X(REDUCE, 28, reduce, reduce, work, RECORDED, NO_TIMEOUT, SMALL)       \
	X(COMMIT, 29, commit, commit, work, RECORDED, NO_TIMEOUT, SMALL)       \
	X(WAIT, 30, wait, wait, places, RECORDED | GRANTS,                     \
	  NO_TIMEOUT, ONE_PLACE)                                               \
	X(COMMS, 31, comms, page, comms, 0, NO_TIMEOUT, SMALL)                 \
	X(GROUPS, 32, groups, groups, groups, 0, NO_TIMEOUT, SMALL)            \
	X(GROUP_PLAN, 33, group_plan, group_plan, group_plan, 0,               \
	  NO_TIMEOUT, SMALL)                                                   \
	X(TIMELINES, 34, timelines, timelines, timelines, 0, NO_TIMEOUT, SMALL)\
	X(COMM_FAIL, 35, comm_fail, comm_fail, empty, RECORDED,                \
	  NO_TIMEOUT, SMALL)                                                   \
	X(SHARE, 36, share, share, places, RECORDED | GRANTS | TAKES_FD,       \
	  NO_TIMEOUT, PLACES(share.n_items))                                   \
	X(UNSHARE, 37, unshare, unshare, empty, 0, TIMEOUT(unshare), SMALL)    \
	X(ORDERED, 38, ordered, ordered, empty, 0, NO_TIMEOUT, SMALL)          \
	X(PREFIXES, 39, prefixes, page, prefixes, 0, NO_TIMEOUT, SMALL)        \
	X(TICKETS, 40, tickets, page, tickets, 0, NO_TIMEOUT, SMALL)           \
	X(REVOKE, 41, revoke, revoke, empty, RECORDED, NO_TIMEOUT, SMALL)      \
	X(HISTOGRAMS, 42, histograms, page, histograms, 0,                     \
	  NO_TIMEOUT, SMALL)                                                   \
	X(MEMORY, 43, memory, page, memory, 0, NO_TIMEOUT, SMALL)              \
	X(ACCOUNTS, 44, accounts, page, accounts, 0, NO_TIMEOUT, SMALL)        \
	X(CONTROL, 45, control, control, control, RECORDED,                    \
	  TIMEOUT(control), SMALL)                                             \
	X(EVENTS, 46, events, events, events, 0, TIMEOUT(events), SMALL)       \
	X(DIGESTS, 47, digests, digests, empty, RECORDED, NO_TIMEOUT, SMALL)   \
	X(COMM_BOARD, 48, comm_board, comm, empty, 0, NO_TIMEOUT, SMALL)       \
	X(CONFIG, 49, config, page, config, 0, NO_TIMEOUT, SMALL)              \
	X(RELOAD, 50, reload, empty, reload, 0, NO_TIMEOUT, SMALL)             \
	X(COMM_PLACE, 51, comm_place, comm_place, places, RECORDED | GRANTS,   \
	  NO_TIMEOUT, ONE_PLACE)                                               \
	X(INPUT_END, 52, input_end, input_end, empty, RECORDED,                \
	  NO_TIMEOUT, SMALL)                                                   \
	X(CHANNEL_OPEN, 53, channel_open, channel_open, channel, RECORDED,     \
	  TIMEOUT(channel_open), SMALL)                                        \
	X(CHANNEL_SLOTS, 54, channel_slots, channel_place, empty, 0,           \
	  NO_TIMEOUT, SMALL)                                                   \
	X(CHANNEL_BUFFER, 55, channel_buffer, channel_buffer, places,          \
	  RECORDED | GRANTS, NO_TIMEOUT, ONE_PLACE)                            \
	X(CHANNEL_CLOSE, 56, channel_close, channel_close, empty, RECORDED,    \
	  NO_TIMEOUT, SMALL)                                                   \
	X(CHANNEL_KEEP, 57, channel_keep, channel_keep, empty, RECORDED,       \
	  NO_TIMEOUT, SMALL)                                                   \
	X(CHANNELS, 58, channels, page, channels, 0, NO_TIMEOUT, SMALL)        \
	X(GATHER_BUFFER, 59, gather_buffer, gather_buffer, places,             \
	  RECORDED | GRANTS, NO_TIMEOUT, ONE_PLACE)                            \
	X(COMM_LOOK, 60, comm_look, comm_look, empty, 0, NO_TIMEOUT, SMALL)    \
	X(CHANNEL_LAG, 61, channel_lag, channel_place, empty, RECORDED,        \
	  NO_TIMEOUT, SMALL)                                                   \
	X(CHANNEL_RESIZE, 62, channel_resize, channel_resize, empty, RECORDED, \
	  TIMEOUT(channel_resize), SMALL)

#define MESSAGE_KINDS(X)                                                       \
	MESSAGE_CONNECTION_KINDS(X)                                            \
	MESSAGE_VERB_KINDS(X)

enum message_kind {
#define X(KIND, number, ...) MESSAGE_##KIND = number,
	MESSAGE_KINDS(X)
#undef X
	MESSAGE_AFTER_LAST,
	MESSAGE_MAX = MESSAGE_AFTER_LAST - 1
};
