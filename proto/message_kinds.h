/*
 * The list of all requests. The row of a request defines its number, name,
 * codec, function in the broker, failpoints and tests.
 *
 * X(KIND, number, noun, action, request, reply, options...)
 *
 * - The action says what a user wanted who sent it: errors begin with "cannot
 *   <action>".
 * - `request` and `reply` name their bodies: struct <request>_request and
 *   struct <reply>_reply, whose fields are in the tables of message_request.c
 *   and message_reply.c. Several kinds may share one; `empty` has no fields.
 * - RECORDED means that the request changes the broker's state, so its reply is
 *   kept until the client has it, and it is never executed twice.
 * - GRANTS means that the reply gives holds of tensors to the client, and lists
 *   their chunks.
 * - TAKES_FD means that the request may have one descriptor.
 * - TIMEOUT means that the request has a time-out. The client may divide it
 *   into slices, and looks after its streams between them.
 * - Other words say what a recorded reply may have besides its chunks and a few
 *   numbers, for some per unit of a field of the request. message.c has their
 *   sizes.
 *
 * The numbers are used on the wire, so they never change. docs/hacking.md shows
 * how to add a request.
 */
#pragma once

/* Rows are formatted by hand. */
/* clang-format off */

/* The requests of a connection, which begin and end a session. */
#define MESSAGE_CONNECTION_KINDS(X)                                            \
	X(HELLO, 1, hello, "connect", hello, hello)                            \
	X(CHALLENGE, 2, challenge, "answer a challenge", challenge, hello)     \
	X(GOODBYE, 3, goodbye, "end the session", empty, empty)

/* The requests of a session. verb_<noun>() in broker/verbs/ executes them. */
#define MESSAGE_VERB_KINDS(X)                                                  \
	X(PING, 4, ping, "ping the broker", empty, empty)                      \
	X(ALLOC, 5, alloc, "allocate tensors",                                 \
	  alloc, places, RECORDED, GRANTS, TIMEOUT(alloc),                     \
	  PLACES(alloc.n_items))                                               \
	X(PUBLISH, 6, publish, "publish tensors",                              \
	  publish, versions, RECORDED, VERSIONS(publish.n_items))              \
	X(GET, 7, get, "get tensors",                                          \
	  get, places, RECORDED, GRANTS, TIMEOUT(get), PLACES(get.n_names))    \
	X(RELEASE, 8, release, "release tensors", release, empty, RECORDED)    \
	X(REMOVE, 9, remove, "remove names", remove, empty, RECORDED)          \
	X(TICKET, 10, ticket, "create a ticket", ticket, ticket, RECORDED)     \
	X(REDEEM, 11, redeem, "redeem tickets",                                \
	  redeem, places, RECORDED, GRANTS, PLACES(redeem.n_tickets))          \
	X(BUNDLE_BEGIN, 12, bundle_begin, "begin a bundle",                    \
	  bundle_begin, bundle, RECORDED, TIMEOUT(bundle_begin))               \
	X(BUNDLE_COMMIT, 13, bundle_commit, "commit a bundle",                 \
	  bundle_end, bundle, RECORDED)                                        \
	X(BUNDLE_ABORT, 14, bundle_abort, "abort a bundle",                    \
	  bundle_end, empty, RECORDED)                                         \
	X(BUNDLE_GET, 15, bundle_get, "get a bundle",                          \
	  bundle_get, bundle_get, RECORDED, GRANTS, TIMEOUT(bundle_get))       \
	X(CHUNK, 16, chunk, "get chunks of memory", chunk, chunks)             \
	X(LIST, 17, list, "list tensors", list, list)                          \
	X(WHO, 18, who, "list the holders of a tensor", who, who)              \
	X(CLIENTS, 19, clients, "list clients", page, clients)                 \
	X(STATUS, 20, status, "get the status", status, status)                \
	X(COMM_JOIN, 21, comm_join, "join a communicator",                     \
	  comm_join, comm, RECORDED, NCCL_ID)                                  \
	X(COMM_LEAVE, 22, comm_leave, "leave a communicator",                  \
	  comm, empty, RECORDED)                                               \
	X(COMM_REMOVE, 23, comm_remove, "remove a communicator",               \
	  comm_remove, empty, RECORDED)                                        \
	X(GROUP, 24, group, "register a group",                                \
	  group, group, RECORDED, GRANTS, ENTRIES(group.n_params))             \
	X(UNSHARD, 25, unshard, "unshard a group", unshard, work, RECORDED)    \
	X(RESHARD, 26, reshard, "reshard a group", reshard, empty, RECORDED)   \
	X(INPUT, 27, input, "get an input for gradients",                      \
	  input, places, RECORDED, GRANTS, ONE_PLACE)                          \
	X(REDUCE, 28, reduce, "reduce gradients", reduce, work, RECORDED)      \
	X(COMMIT, 29, commit, "commit a step", commit, work, RECORDED)         \
	X(WAIT, 30, wait, "wait for a group or a step",                        \
	  wait, places, RECORDED, GRANTS, ONE_PLACE)                           \
	X(COMMS, 31, comms, "list communicators", page, comms)                 \
	X(GROUPS, 32, groups, "list groups", groups, groups)                   \
	X(GROUP_PLAN, 33, group_plan, "get the plan of a group",               \
	  group_plan, group_plan)                                              \
	X(TIMELINES, 34, timelines, "get timelines", timelines, timelines)     \
	X(COMM_FAIL, 35, comm_fail, "report why a communicator failed",        \
	  comm_fail, empty, RECORDED)                                          \
	X(SHARE, 36, share, "share device memory",                             \
	  share, places, RECORDED, GRANTS, TAKES_FD, PLACES(share.n_items))    \
	X(UNSHARE, 37, unshare, "end the sharing of a tensor",                 \
	  unshare, empty, TIMEOUT(unshare))                                    \
	X(ORDERED, 38, ordered, "report complete events", ordered, empty)      \
	X(PREFIXES, 39, prefixes, "list prefixes", page, prefixes)             \
	X(TICKETS, 40, tickets, "list tickets", page, tickets)                 \
	X(REVOKE, 41, revoke, "revoke a ticket", revoke, empty, RECORDED)      \
	X(HISTOGRAMS, 42, histograms, "get histograms", page, histograms)      \
	X(MEMORY, 43, memory, "list chunks of memory", page, memory)           \
	X(ACCOUNTS, 44, accounts, "list accounts", page, accounts)             \
	X(CONTROL, 45, control, "control the broker",                          \
	  control, control, RECORDED, TIMEOUT(control))                        \
	X(EVENTS, 46, events, "watch names", events, events, TIMEOUT(events))  \
	X(DIGESTS, 47, digests, "store digests", digests, empty, RECORDED)     \
	X(COMM_BOARD, 48, comm_board, "get the board of a communicator",       \
	  comm, empty)                                                         \
	X(CONFIG, 49, config, "get the configuration", page, config)           \
	X(RELOAD, 50, reload, "reload the configuration", empty, reload)       \
	X(COMM_PLACE, 51, comm_place, "get memory of a communicator",          \
	  comm_place, places, RECORDED, GRANTS, ONE_PLACE)                     \
	X(INPUT_END, 52, input_end, "return an input for gradients",           \
	  input_end, empty, RECORDED)                                          \
	X(CHANNEL_OPEN, 53, channel_open, "open a channel",                    \
	  channel_open, channel, RECORDED, TIMEOUT(channel_open))              \
	X(CHANNEL_SLOTS, 54, channel_slots, "get the words of a channel",      \
	  channel_place, empty)                                                \
	X(CHANNEL_BUFFER, 55, channel_buffer, "get a buffer of a channel",     \
	  channel_buffer, places, RECORDED, GRANTS, ONE_PLACE)                 \
	X(CHANNEL_CLOSE, 56, channel_close, "close a channel",                 \
	  channel_close, empty, RECORDED)                                      \
	X(CHANNEL_KEEP, 57, channel_keep, "keep an item of a channel",         \
	  channel_keep, empty, RECORDED)                                       \
	X(CHANNELS, 58, channels, "list channels", page, channels)             \
	X(GATHER_BUFFER, 59, gather_buffer, "get a buffer for a gather",       \
	  gather_buffer, places, RECORDED, GRANTS, ONE_PLACE)                  \
	X(COMM_LOOK, 60, comm_look, "look for a rank that ended",              \
	  comm_look, empty)                                                    \
	X(CHANNEL_LAG, 61, channel_lag, "report consumers that are too slow",  \
	  channel_place, empty, RECORDED)                                      \
	X(CHANNEL_RESIZE, 62, channel_resize, "resize a channel",              \
	  channel_resize, empty, RECORDED, TIMEOUT(channel_resize))            \
	X(CHANNEL_LOOK, 63, channel_look, "look for a user that ended",        \
	  channel_look, empty)

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
