/*
 * The command line of fsdp-exporter.
 */
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include <sys/socket.h>

struct error;

struct options {
	struct sockaddr_storage address; /* to listen at */
	const char *socket;    /* of the broker; NULL: the usual places */
	const char *port_file; /* the port is written there; NULL: nowhere */
	bool has_no_sandbox;
};

enum options_outcome { OPTIONS_RUN, OPTIONS_DONE };

/* OPTIONS_DONE: help or the version was printed. Negative: wrong usage. */
int options_parse(int argc, char **argv, struct options *ret,
		  struct error *err);
