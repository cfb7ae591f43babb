/*
 * The command line of fsdp-exporter.
 */
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include <sys/socket.h>

struct error;

struct options {
	struct sockaddr_storage address; /* address and port to listen on */
	const char *host;                /* the address as it was given */
	const char *socket;    /* of the broker; NULL: the usual places */
	const char *port_file; /* file for the port; NULL: none */
	bool has_no_sandbox;
};

enum options_outcome { OPTIONS_RUN, OPTIONS_DONE };

/* Parse the command line. OPTIONS_DONE: help or the version was printed.
 * Negative: wrong usage. */
int options_parse(int argc, char **argv, struct options *ret,
		  struct error *err);
