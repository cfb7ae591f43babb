#include "tests/unit/broker/session/connection_fixture.h"
#include "tests/lib/check.h"
#include <sys/socket.h>
#include <unistd.h>

void connection_setup(struct connection *connection,
		      const struct config *config)
{
	const int type = SOCK_SEQPACKET | SOCK_NONBLOCK | SOCK_CLOEXEC;
	int fds[2];

	cr_assert(zero(int, uv_loop_init(&connection->loop)));
	cr_assert(zero(int, deadlines_init(&connection->deadlines,
					   &connection->loop, NULL, NULL)));
	accounts_init(&connection->accounts, config);
	connection->account = accounts_get(&connection->accounts, 1000);
	cr_assert(zero(int, socketpair(AF_UNIX, type, 0, fds)));
	connection->broker_fd = fds[0];
	connection->client_fd = fds[1];
}

void connection_teardown(struct connection *connection)
{
	cr_expect(zero(u64, connection->account->used[ACCOUNT_QUEUE]));
	connection_close_client(connection);
	accounts_deinit(&connection->accounts);
	deadlines_stop(&connection->deadlines);
	uv_run(&connection->loop, UV_RUN_DEFAULT);
	cr_expect(zero(int, uv_loop_close(&connection->loop)));
}

void connection_close_client(struct connection *connection)
{
	if (connection->client_fd >= 0)
		close(connection->client_fd);
	connection->client_fd = -1;
}
