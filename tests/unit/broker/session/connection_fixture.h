/*
 * What one connection of a broker needs: a pair of sockets, the deadlines of a
 * loop, and the account of its user.
 */
#pragma once
#include "broker/base/account.h"
#include "broker/base/config.h"
#include "broker/base/deadline.h"
#include "tests/unit/broker/loop_fixture.h"
#include <uv.h>

struct connection {
	uv_loop_t loop;
	struct deadlines deadlines;
	struct accounts accounts;
	struct account *account;
	int broker_fd; /* the test closes it */
	int client_fd;
};

/* `config` must live as long as the connection. */
void connection_setup(struct connection *connection,
		      const struct config *config);

/* Nothing is charged any more then. */
void connection_teardown(struct connection *connection);

/* The client goes away. */
void connection_close_client(struct connection *connection);
