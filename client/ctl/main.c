/*
 * fsdpctl shows the state of the broker and moves tensors between it and files.
 *
 * It uses the broker only through the public API of libfsdp, so a script in
 * another language could do the same. Exit codes: 0 for success, 1 for failure
 * (after an error message), 2 for wrong usage.
 */
#include "client/ctl/args.h"
#include "client/ctl/broker.h"
#include "client/ctl/interrupt.h"
#include "client/ctl/suggest.h"
#include "client/ctl/table.h"
#include "client/ctl/verb.h"
#include "client/fsdp.h"
#include "proto/error.h"
#include "proto/std_fds.h"

#include <errno.h>
#include <malloc.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define EXIT_USAGE 2

static void complain(struct error *err)
{
	/* names and commands in the message may come from other processes */
	table_clean(err->msg);
	fprintf(stderr, "fsdpctl: %s\n", err->msg);
}

static void print_usage(FILE *file)
{
	fputs("usage: fsdpctl [--socket PATH] VERB [options]\n\n", file);
	for_each_verb(verb)
	{
		if (verb->summary)
			fprintf(file, "  %-9s %s\n", verb->name, verb->summary);
	}
	fputs("\n'fsdpctl help VERB' shows the options of a verb. Before the "
	      "verb:\n",
	      file);
	args_print_help(ARGS_GLOBAL, file);
}

static void print_verb(const struct verb *verb)
{
	printf("usage: fsdpctl %s %s%s[options]\n\n%s\n\n", verb->name,
	       verb->operands, *verb->operands ? " " : "", verb->summary);
	args_print_help(verb->accepts | ARGS_COMMON, stdout);
}

static const struct verb *find_verb(const char *name, struct error *err)
{
	const struct verb *nearest = NULL;
	size_t least = SIZE_MAX;

	if (strcmp(name, verb_complete.name) == 0)
		return &verb_complete;
	for_each_verb(verb)
	{
		size_t distance = suggest_distance(name, verb->name);

		if (distance == 0)
			return verb;
		if (distance < least) {
			least = distance;
			nearest = verb;
		}
	}
	if (least <= 2)
		error_set(err, -EINVAL,
			  "there is no verb '%.32s': did you mean '%s'?", name,
			  nearest->name);
	else
		error_set(err, -EINVAL,
			  "there is no verb '%.32s'; 'fsdpctl help' lists them",
			  name);
	return NULL;
}

/* Parses the words after the verb and checks them against its table row. */
static int parse_verb(const struct verb *verb, struct args *args,
		      struct error *err)
{
	uint64_t accepts = verb->accepts | ARGS_COMMON;
	uint64_t before = args->given & ~accepts;
	int r;

	/* options before the verb were accepted without knowing the verb */
	if (before)
		return error_set(err, -EINVAL, "%s has no option --%s",
				 verb->name,
				 before & ARG_BIT(ARG_TIMEOUT) ? "timeout"
				 : before & ARG_BIT(ARG_JSON)  ? "json"
							       : "quiet");
	r = args_parse(args, (int)args->n_operands, (char **)args->operands,
		       accepts, false, err);
	if (r < 0 || args_has(args, ARG_HELP))
		return r;
	if (args->n_operands < verb->n_min)
		return error_set(err, -EINVAL, "%s needs %s", verb->name,
				 verb->operands);
	if (args->n_operands > verb->n_max)
		return error_set(err, -EINVAL,
				 "%s: unexpected argument '%.64s'", verb->name,
				 args->operands[verb->n_max]);
	return verb->check ? verb->check(args, err) : 0;
}

static int run_verb(const struct verb *verb, const struct args *args,
		    struct error *err)
{
	struct fsdp_client *client = NULL;
	int r = 0;

	if (!verb->is_local)
		r = broker_connect(args, &client, err);
	if (r < 0)
		return r;
	r = verb->run(client, args, err);
	fsdp_close(client);
	return r;
}

/* Writes the rest of standard output. If it is a terminal, only ferror() tells
 * that lines before the rest are missing. */
static int finish_output(struct error *err)
{
	int r = 0;

	if (fflush(stdout) == EOF)
		r = -errno;
	else if (ferror(stdout))
		r = -EIO;
	return r < 0 ? error_errno(err, r, "cannot write standard output") : 0;
}

/* `verb` is NULL if the error is not about the words after a verb. */
static int usage_failed(const struct verb *verb, struct error *err)
{
	complain(err);
	fprintf(stderr, "fsdpctl: see fsdpctl %s%s--help\n",
		verb ? verb->name : "", verb ? " " : "");
	return EXIT_USAGE;
}

/* Runs "help [VERB]". */
static int run_help(const struct args *args, struct error *err)
{
	const struct verb *verb;

	if (args->n_operands == 1) {
		print_usage(stdout);
		return EXIT_SUCCESS;
	}
	verb = find_verb(args->operands[1], err);
	if (!verb)
		return usage_failed(NULL, err);
	print_verb(verb);
	return EXIT_SUCCESS;
}

static int run(int argc, char **argv, struct error *err)
{
	const struct verb *verb;
	struct args args;

	args_init(&args);
	if (args_parse(&args, argc, argv, ARGS_GLOBAL, true, err) < 0)
		return usage_failed(NULL, err);
	if (args_has(&args, ARG_VERSION)) {
		printf("fsdpctl %s (libfsdp %s)\n", FSDP_VERSION,
		       fsdp_version());
		return EXIT_SUCCESS;
	}
	if (args_has(&args, ARG_HELP) || args.n_operands == 0) {
		print_usage(args.n_operands || args_has(&args, ARG_HELP)
				    ? stdout
				    : stderr);
		return args_has(&args, ARG_HELP) ? EXIT_SUCCESS : EXIT_USAGE;
	}
	if (strcmp(args.operands[0], "help") == 0)
		return run_help(&args, err);
	verb = find_verb(args.operands[0], err);
	if (!verb || parse_verb(verb, &args, err) < 0)
		return usage_failed(verb, err);
	if (args_has(&args, ARG_HELP)) {
		print_verb(verb);
		return EXIT_SUCCESS;
	}
	if (run_verb(verb, &args, err) < 0) {
		complain(err);
		interrupt_die();
		return EXIT_FAILURE;
	}
	return EXIT_SUCCESS;
}

int main(int argc, char **argv)
{
	struct error err = ERROR_NULL;
	int r;

	/* getopt needs argv[0] */
	if (argc < 1)
		return EXIT_USAGE;
	std_fds_open();
	argv[0] = (char *)"fsdpctl";
	/* A page of a list needs more memory than malloc() keeps by default.
	 * Without this, each page would be returned to the kernel and faulted
	 * in again for the next one. */
	(void)mallopt(M_TRIM_THRESHOLD, 4 << 20);
	r = run(argc, argv, &err);
	if (r == EXIT_SUCCESS && finish_output(&err) < 0) {
		complain(&err);
		interrupt_die();
		r = EXIT_FAILURE;
	}
	return r;
}
