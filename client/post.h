/*
 * One-way requests: the broker answers them only with a refusal.
 */
#pragma once

struct connection;
struct error;
struct post; /* call.h */
struct request;

/*
 * A request that is not waited for, and answered only with a refusal. It is
 * sent now, before whatever this thread asks next; sent again if the broker
 * goes away. If it is refused, `post` has been told before the next call of
 * this thread returns. Where too many are on their way it is waited for, and a
 * refusal returned.
 */
int connection_post(struct connection *connection,
		    const struct request *request, const struct post *post,
		    struct error *err);

/* `data` goes: nothing is told it any more. */
void connection_forget_posts(struct connection *connection, const void *data);
