/*
 * complete: lists what can follow on a command line, for the completion of
 * shells.
 *
 * The operands are the words after "fsdpctl"; the last one is the word that is
 * being typed. Each line of the output is a candidate, a tab and its
 * description. The line ":files" means that names of files can follow. The
 * candidates come from the tables of verbs and options, so the completion
 * scripts do not contain any.
 */
#include "client/ctl/args.h"
#include "client/ctl/broker.h"
#include "client/ctl/listing.h"
#include "client/ctl/verb.h"
#include "client/fsdp.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

struct completion {
	const char *typed; /* the word that is being typed */
	struct args args;  /* for the connection */
};

static void offer(const struct completion *completion, const char *word,
		  const char *meaning)
{
	if (strncmp(word, completion->typed, strlen(completion->typed)) == 0)
		printf("%s\t%s\n", word, meaning ? meaning : "");
}

static void offer_words(const struct completion *completion, const char *words)
{
	while (*words) {
		size_t size = strcspn(words, " ");
		char word[64];

		snprintf(word, sizeof(word), "%.*s", (int)size, words);
		offer(completion, word, NULL);
		words += size + (words[size] == ' ');
	}
}

/* --- what the broker has ------------------------------------------------- */

static int offer_name(const struct fsdp_entry *entry, void *data)
{
	offer(data, entry->info->name, fsdp_dtype_name(entry->info->dtype));
	return 0;
}

/* Offers a bundle at its first member. The members of a bundle mostly follow
 * one another in a list, so it is seldom offered twice. */
static int offer_bundle(const struct fsdp_entry *entry, void *data)
{
	static uint64_t last;
	char name[FSDP_MAX_NAME + 1];

	if (!entry->bundle || entry->bundle == last)
		return 0;
	last = entry->bundle;
	snprintf(name, sizeof(name), "%.*s", (int)entry->bundle_name_size,
		 entry->info->name);
	offer(data, name, "bundle");
	return 0;
}

static int offer_ticket(const struct fsdp_ticket_entry *entry, void *data)
{
	char id[17];

	snprintf(id, sizeof(id), "%016" PRIx64, entry->id);
	offer(data, id, entry->name);
	return 0;
}

static int offer_comm(const struct fsdp_comm_entry *entry, void *data)
{
	offer(data, entry->name, "communicator");
	return 0;
}

static int offer_group(const struct fsdp_group_entry *entry, void *data)
{
	offer(data, entry->name, entry->comm);
	return 0;
}

static int offer_device(const struct fsdp_device_entry *entry, void *data)
{
	char text[FSDP_DEVICE_TEXT];

	fsdp_device_format(&entry->device, text);
	offer(data, text, entry->name);
	return 0;
}

static void ask_broker(struct completion *completion, const char *what)
{
	struct fsdp_client *client;

	/* without a broker there are no candidates */
	if (broker_connect(&completion->args, &client, NULL) < 0)
		return;
	if (strcmp(what, "TICKET") == 0)
		(void)fsdp_tickets(client, offer_ticket, completion);
	else if (strcmp(what, "COMM") == 0)
		(void)fsdp_comms(client, offer_comm, completion);
	else if (strcmp(what, "GROUP") == 0)
		(void)fsdp_groups(client, NULL, offer_group, completion);
	else
		(void)fsdp_list(client, completion->typed, offer_bundle,
				completion);
	if (strcmp(what, "NAME") == 0 || strcmp(what, "PREFIX") == 0)
		(void)fsdp_list(client, completion->typed, offer_name,
				completion);
	(void)fsdp_close(client);
}

/* --- values and operands ------------------------------------------------- */

/* Offers values for a placeholder of the usage line, such as "FILE". */
static void offer_kind(struct completion *completion, const char *kind)
{
	static const char *const files[] = {"FILE", "PATH", "DIRECTORY",
					    "GRAPH.json"};
	static const char *const asked[] = {"NAME",   "PREFIX", "NAME/",
					    "TICKET", "COMM",   "GROUP"};

	for (size_t i = 0; i < sizeof(files) / sizeof(*files); i++)
		if (strcmp(kind, files[i]) == 0)
			puts(":files");
	for (size_t i = 0; i < sizeof(asked) / sizeof(*asked); i++)
		if (strcmp(kind, asked[i]) == 0)
			ask_broker(completion, kind);
	if (strcmp(kind, "GPU-...") == 0)
		(void)fsdp_devices(offer_device, completion);
	if (strcmp(kind, "LEVEL") == 0)
		offer_words(completion, "error warning info");
}

static void offer_value(struct completion *completion,
			const struct args_option *option)
{
	if (option->choices)
		offer_words(completion, option->choices);
	else
		offer_kind(completion, option->value);
}

/* Finds the placeholder of operand `n` in a usage line such as "[COMM
 * [GROUP]]", without the brackets. The last one is used for all further
 * operands if it ends in "...". */
static void offer_operand(struct completion *completion,
			  const struct verb *verb, size_t n)
{
	const char *p = verb->operands;
	char kind[32] = "";

	for (size_t i = 0; *p; i++) {
		p += strspn(p, "[ ");
		snprintf(kind, sizeof(kind), "%.*s", (int)strcspn(p, " ]"), p);
		p += strcspn(p, " ]");
		p += strspn(p, "] ");
		if (i == n || strstr(kind, "..."))
			break;
		*kind = '\0';
	}
	kind[strcspn(kind, ".")] = '\0';
	if (strncmp(verb->operands, "GRAPH", 5) == 0)
		snprintf(kind, sizeof(kind), "FILE");
	offer_kind(completion, kind);
}

static void offer_verbs(const struct completion *completion)
{
	for_each_verb(verb)
	{
		if (verb->summary)
			offer(completion, verb->name, verb->summary);
	}
	offer(completion, "help",
	      "list the verbs, or show the arguments of one");
}

static void offer_options(const struct completion *completion, uint64_t accepts)
{
	for (enum arg i = 0; i < N_ARGS; i++) {
		char word[64];

		if (!(accepts & ARG_BIT(i)))
			continue;
		snprintf(word, sizeof(word), "--%s", args_option(i)->name);
		offer(completion, word, args_option(i)->help);
	}
}

/* --- the line ------------------------------------------------------------ */

static const struct verb *find_verb(const char *name)
{
	for_each_verb(verb)
	{
		if (strcmp(verb->name, name) == 0)
			return verb;
	}
	return NULL;
}

/* Returns the option that the word names, or NULL if it names no option. */
static const struct args_option *find_option(const char *word, uint64_t accepts)
{
	for (enum arg i = 0; i < N_ARGS; i++) {
		const struct args_option *option = args_option(i);

		if (!(accepts & ARG_BIT(i)) || word[0] != '-')
			continue;
		if ((word[1] == '-' && strcmp(word + 2, option->name) == 0) ||
		    (word[1] && word[1] == option->letter && !word[2]))
			return option;
	}
	return NULL;
}

static uint64_t accepted(const struct verb *verb)
{
	return verb ? verb->accepts | ARGS_COMMON : ARGS_GLOBAL;
}

static int run_complete(struct fsdp_client *client, const struct args *args,
			struct error *err)
{
	struct completion completion = {.typed = ""};
	const struct args_option *option = NULL;
	const struct verb *verb = NULL;
	bool is_help = false;
	size_t n_operands = 0;

	(void)client;
	(void)err;
	args_init(&completion.args);
	for (size_t i = 0; i + 1 < args->n_operands; i++) {
		const char *word = args->operands[i];

		if (option && option == args_option(ARG_SOCKET))
			completion.args.socket = word;
		if (option) {
			option = NULL;
			continue;
		}
		option = find_option(word, accepted(verb));
		if (option && !option->value)
			option = NULL;
		else if (!option && word[0] != '-' && !verb && !is_help)
			is_help = !(verb = find_verb(word)) &&
				  strcmp(word, "help") == 0;
		else if (!option && word[0] != '-')
			n_operands++;
	}
	if (args->n_operands)
		completion.typed = args->operands[args->n_operands - 1];
	if (option)
		offer_value(&completion, option);
	else if (completion.typed[0] == '-')
		offer_options(&completion, accepted(verb));
	else if (verb)
		offer_operand(&completion, verb, n_operands);
	else
		offer_verbs(&completion);
	return 0;
}

const struct verb verb_complete = {.name = "complete",
				   .operands = "-- [WORD...]",
				   .n_max = SIZE_MAX,
				   .is_local = true,
				   .run = run_complete};
