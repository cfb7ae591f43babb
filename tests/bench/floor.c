#include "floor.h"
#include "fsdp.h"
#include "wire.h"
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#define MAX_SIZE 65536

/* Each request begins with this; the rest is padding. */
struct order {
	uint32_t reply_size, forward_size;
};

/* Serve one request of the peer at `from`. Returns false when the peer is
 * gone. */
static bool serve(const int *socks, unsigned from, uint8_t *buffer)
{
	struct order order;
	ssize_t n;

	n = recv(socks[from], buffer, MAX_SIZE, 0);
	if (n < (ssize_t)sizeof(order))
		return false;
	memcpy(&order, buffer, sizeof(order));
	if (order.forward_size)
		message_send(socks[!from], buffer, order.forward_size);
	if (order.reply_size)
		message_send(socks[from], buffer, order.reply_size);
	return true;
}

static void server(int sock_fd, void *data)
{
	static uint8_t buffer[MAX_SIZE];
	const int *socks = data;
	int epoll_fd = sys(epoll_create1(EPOLL_CLOEXEC), "epoll_create1");
	struct epoll_event event;
	bool is_alive = true;

	for (unsigned i = 0; i < 2; i++) {
		event = (struct epoll_event){.events = EPOLLIN, .data.u32 = i};
		sys(epoll_ctl(epoll_fd, EPOLL_CTL_ADD, socks[i], &event),
		    "epoll_ctl");
	}
	memset(buffer, 0, sizeof(buffer));
	message_send(sock_fd, "r", 1);
	while (is_alive)
		if (epoll_wait(epoll_fd, &event, 1, -1) == 1)
			is_alive = serve(socks, event.data.u32, buffer);
}

void floor_start(struct floor *floor, const struct bench *bench)
{
	int theirs[2];
	char ready;

	for (int i = 0; i < 2; i++) {
		int pair[2];

		sys(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair),
		    "socketpair");
		floor->socks[i] = pair[0];
		theirs[i] = pair[1];
	}
	child_start(&floor->server, bench->server_cpu, server, theirs);
	for (int i = 0; i < 2; i++)
		close(theirs[i]);
	message_receive(floor->server.sock_fd, &ready, 1);
}

void floor_stop(struct floor *floor)
{
	child_kill(&floor->server);
	for (int i = 0; i < 2; i++)
		close(floor->socks[i]);
}

static void order_send(int sock_fd, uint32_t size, struct order order)
{
	static uint8_t buffer[MAX_SIZE];

	memcpy(buffer, &order, sizeof(order));
	message_send(sock_fd, buffer,
		     size < sizeof(order) ? sizeof(order) : size);
}

void floor_wait(int sock_fd)
{
	static uint8_t buffer[MAX_SIZE];

	if (recv(sock_fd, buffer, sizeof(buffer), 0) <= 0)
		die("the floor's server is gone");
}

void floor_call_and_forward(int sock_fd, struct floor_sizes sizes,
			    uint32_t forward_size)
{
	order_send(sock_fd, sizes.request,
		   (struct order){sizes.reply, forward_size});
	floor_wait(sock_fd);
}

void floor_call(int sock_fd, struct floor_sizes sizes)
{
	floor_call_and_forward(sock_fd, sizes, 0);
}

void floor_park(int sock_fd, uint32_t request_size)
{
	order_send(sock_fd, request_size, (struct order){0, 0});
}

struct floor_sizes floor_last_sizes(void)
{
	if (wire.sent_size == 0 || wire.received_size == 0)
		die("libfsdp's messages are not seen; is it linked "
		    "statically?");
	return (struct floor_sizes){(uint32_t)wire.sent_size,
				    (uint32_t)wire.received_size};
}

/* One connection publishes and another one asks, because a connection knows its
 * own names. */
struct floor_sizes floor_weigh_get(const char *socket)
{
	struct fsdp_client *owner = client_open(socket);
	struct fsdp_client *client = client_open(socket);
	const char *names[] = {"weight/00000000", "weight/00000001"};
	struct fsdp_tensor *tensors[2];
	struct floor_sizes sizes;

	publish_many(owner, "weight", 2, 64);
	/* The first reply contains the chunk's descriptor, the second does
	 * not. */
	for (int i = 0; i < 2; i++)
		must(fsdp_get(client, &names[i], 1, NULL, &tensors[i]), "get");
	sizes = floor_last_sizes();
	must(fsdp_remove(owner, names, 2), "remove");
	fsdp_close(client);
	fsdp_close(owner);
	return sizes;
}
