/*
 * The HTTP server: one thread, a bounded number of connections, GET and HEAD.
 */
#pragma once
#include <stdint.h>
#include <sys/socket.h>

struct collector;
struct error;
struct server;

/* Start the server. `collector` is borrowed. */
int server_start(const struct sockaddr_storage *address,
		 struct collector *collector, struct server **ret,
		 struct error *err);
/* Stop the server. Call collector_close() before, which ends all waits. */
void server_stop(struct server *server);

uint16_t server_port(const struct server *server);
