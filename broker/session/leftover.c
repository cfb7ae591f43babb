#include "broker/session/leftover.h"
#include "broker/base/account.h"
#include "broker/base/closer.h"
#include "proto/frame.h"
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

/* The first delay before the check whether the client has read everything, and
 * the limit up to which it doubles. */
#define FIRST_LOOK_MS 1
#define LAST_LOOK_MS  1024

void leftover_close(const struct leftover *leftover)
{
	if (leftover->account)
		account_refund(leftover->account, ACCOUNT_QUEUE,
			       leftover->charge);
	/* A descriptor that is slow to close cannot be in the socket. */
	if (!leftover->took_fds)
		close(leftover->sock_fd);
	else
		closer_put_connection(leftover->closer, leftover->uid,
				      leftover->sock_fd);
}

static void end(struct leftover *leftover)
{
	*leftover->at = leftover->next;
	if (leftover->next)
		leftover->next->at = leftover->at;
	retry_stop(&leftover->look);
	leftover_close(leftover);
	free(leftover);
}

static void plan_look(struct leftover *leftover)
{
	if (retry_plan(&leftover->look, FIRST_LOOK_MS, LAST_LOOK_MS, NULL) < 0)
		end(leftover);
}

static void on_look(void *data, uint32_t index)
{
	struct leftover *leftover = data;

	(void)index;
	if (frame_has_unread(leftover->sock_fd))
		plan_look(leftover);
	else
		end(leftover);
}

static void link_in(struct leftover *leftover)
{
	leftover->at = leftover->list;
	leftover->next = *leftover->list;
	if (leftover->next)
		leftover->next->at = &leftover->next;
	*leftover->list = leftover;
}

void leftover_keep(const struct leftover *leftover)
{
	struct leftover *kept = malloc(sizeof(*kept));

	if (!kept) {
		leftover_close(leftover);
		return;
	}
	*kept = *leftover;
	kept->look.fn = on_look;
	kept->look.data = kept;
	(void)shutdown(kept->sock_fd, SHUT_RDWR);
	link_in(kept);
	plan_look(kept);
}

void leftovers_close(struct leftover *list)
{
	struct leftover *next;

	for (; list; list = next) {
		next = list->next;
		end(list);
	}
}
