/*
 * Parses the command line. getopt_long() walks over it, and tables describe
 * each option.
 */
#include "client/ctl/args.h"

#include "client/ctl/format.h"
#include "collective/bucket.h"
#include "collective/bucketing.h"
#include "proto/error.h"
#include "proto/name.h"

#include <ctype.h>
#include <errno.h>
#include <getopt.h>
#include <grp.h>
#include <stdlib.h>
#include <string.h>

static int read_socket(struct args *args, const char *text, struct error *err)
{
	if (!*text)
		return error_set(err, -EINVAL, "the path is empty");
	args->socket = text;
	return 0;
}

static int read_timeout(struct args *args, const char *text, struct error *err)
{
	uint64_t ms;
	int r;

	if (strcmp(text, "forever") == 0) {
		args->timeout_ms = -1;
		return 0;
	}
	r = format_read_time(text, &ms, err);
	if (r < 0)
		return r;
	if (ms > INT32_MAX)
		return error_set(
			err, -EINVAL,
			"'%s' is too long: give at most 596h, or forever",
			text);
	args->timeout_ms = (int32_t)ms;
	return 0;
}

static int read_prefix(struct args *args, const char *text, struct error *err)
{
	args->prefix = text;
	if (!name_is_bundle(text))
		return error_set(err, -EINVAL,
				 "a prefix must end in '/': give '%.200s/'",
				 text);
	return name_check_bundle(text, err);
}

static int read_mode(struct args *args, const char *text, struct error *err)
{
	char *end;
	unsigned long mode = strtoul(text, &end, 8);

	if (*text < '0' || *text > '7' || *end || (mode & ~0666ul) ||
	    (mode & 0600) != 0600)
		return error_set(err, -EINVAL,
				 "'%s' is not a mode from 0600 to 0666 without "
				 "x",
				 text);
	args->mode = (uint32_t)mode;
	return 0;
}

static int read_group(struct args *args, const char *text, struct error *err)
{
	const struct group *group;
	uint64_t gid;

	if (format_read_number(text, &gid, NULL) == 0) {
		if (gid >= FSDP_GID_DEFAULT)
			return error_set(err, -EINVAL, "no group has id %s",
					 text);
		args->gid = (uint32_t)gid;
		return 0;
	}
	group = getgrnam(text);
	if (!group)
		return error_set(err, -EINVAL, "there is no group '%s'", text);
	args->gid = group->gr_gid;
	return 0;
}

static int read_ttl(struct args *args, const char *text, struct error *err)
{
	int r = format_read_time(text, &args->ttl_ms, err);

	if (r < 0)
		return r;
	if (args->ttl_ms == 0)
		return error_set(err, -EINVAL,
				 "the time must be greater than 0; leave the "
				 "option out for a name without an end");
	return 0;
}

static int read_output(struct args *args, const char *text, struct error *err)
{
	if (!*text)
		return error_set(err, -EINVAL, "the path is empty");
	args->output = text;
	return 0;
}

static int read_cast(struct args *args, const char *text, struct error *err)
{
	if (strcmp(text, "f32") != 0)
		return error_set(
			err, -EINVAL,
			"cannot cast to '%s': the only dtype to cast to is f32",
			text);
	args->cast = DTYPE_F32;
	return 0;
}

static int read_name(struct args *args, const char *text, struct error *err)
{
	args->name = text;
	return name_check(text, err);
}

static int read_dtype(struct args *args, const char *text, struct error *err)
{
	args->type.dtype = dtype_by_name(text);
	if (!args->type.dtype)
		return error_set(err, -EINVAL,
				 "there is no dtype '%s': they are bool, u8 to "
				 "u64, i8 to i64, f16, bf16, f32, f64, "
				 "f8_e4m3, f8_e5m2, c64, c128",
				 text);
	return 0;
}

static int read_shape(struct args *args, const char *text, struct error *err)
{
	return format_read_shape(text, &args->type, err);
}

static int read_million(uint32_t *ret, const char *text, struct error *err)
{
	uint64_t count;
	int r = format_read_number(text, &count, err);

	if (r < 0)
		return r;
	if (count == 0 || count > 1000000)
		return error_set(err, -EINVAL,
				 "'%s' is not a number from 1 to 1,000,000",
				 text);
	*ret = (uint32_t)count;
	return 0;
}

static int read_count(struct args *args, const char *text, struct error *err)
{
	return read_million(&args->count, text, err);
}

static int read_rows(struct args *args, const char *text, struct error *err)
{
	return read_million(&args->n_rows, text, err);
}

static int read_rule_mode(struct args_rule *rule, const char *text,
			  struct error *err)
{
	rule->mode = bucketing_mode_by_name(text);
	if (rule->mode == BUCKETING_N_MODES)
		return error_set(err, -EINVAL,
				 "there is no mode '%s': they are default, "
				 "custom_ops, custom_ops_multidtype, coalesced",
				 text);
	return 0;
}

static int read_gather_mode(struct args *args, const char *text,
			    struct error *err)
{
	return read_rule_mode(&args->gather, text, err);
}

static int read_reduce_mode(struct args *args, const char *text,
			    struct error *err)
{
	return read_rule_mode(&args->reduce, text, err);
}

static int read_bucket_mode(struct args *args, const char *text,
			    struct error *err)
{
	int r = read_gather_mode(args, text, err);

	return r < 0 ? r : read_reduce_mode(args, text, err);
}

static int read_rule_caps(struct args_rule *rule, const char *text,
			  struct error *err)
{
	const char *p = text;

	rule->n_caps = 0;
	for (;;) {
		char *end;
		double cap = strtod(p, &end);
		int r;

		if (end == p || isspace((unsigned char)*p) ||
		    (*end && *end != ','))
			return error_set(err, -EINVAL,
					 "'%s' is not a list of MiB such as 25 "
					 "or 25,100",
					 text);
		r = bucket_check_cap(cap, err);
		if (r < 0)
			return r;
		if (rule->n_caps == ARGS_MAX_CAPS)
			return error_set(err, -EINVAL,
					 "'%s' has more than %d caps", text,
					 ARGS_MAX_CAPS);
		rule->caps_mb[rule->n_caps++] = cap;
		if (!*end)
			return 0;
		p = end + 1;
	}
}

static int read_gather_caps(struct args *args, const char *text,
			    struct error *err)
{
	return read_rule_caps(&args->gather, text, err);
}

static int read_reduce_caps(struct args *args, const char *text,
			    struct error *err)
{
	return read_rule_caps(&args->reduce, text, err);
}

static int read_caps(struct args *args, const char *text, struct error *err)
{
	int r = read_gather_caps(args, text, err);

	return r < 0 ? r : read_reduce_caps(args, text, err);
}

static int read_device(struct args *args, const char *text, struct error *err)
{
	int r = fsdp_device_parse(text, &args->device);

	return r < 0 ? error_set(err, r, "%s", fsdp_error()) : 0;
}

static int read_tree(struct args *args, const char *text, struct error *err)
{
	args->prefix = text;
	return *text ? 0
		     : error_set(err, -EINVAL,
				 "the prefix is empty, which would select all "
				 "names; give a name that ends in '/'");
}

/* Returns the index of `text` among the `n` words. `all` lists them for the
 * error. */
static int read_word(const char *text, const char *const *words, int n,
		     const char *all, struct error *err)
{
	for (int i = 0; i < n; i++)
		if (strcmp(text, words[i]) == 0)
			return i;
	return error_set(err, -EINVAL, "'%s' is not %s", text, all);
}

static int read_sort(struct args *args, const char *text, struct error *err)
{
	static const char *const words[SORT_N] = {"name", "bytes", "age",
						  "holders"};
	int r = read_word(text, words, SORT_N, "name, bytes, age or holders",
			  err);

	if (r < 0)
		return r;
	args->sort = (enum args_sort)r;
	return 0;
}

static int read_by(struct args *args, const char *text, struct error *err)
{
	static const char *const words[BY_N] = {"uid", "process", "bundle",
						"prefix"};
	int r = read_word(text, words, BY_N, "uid, process, bundle or prefix",
			  err);

	if (r < 0)
		return r;
	args->by = (enum args_by)r;
	return 0;
}

static int read_newer_than(struct args *args, const char *text,
			   struct error *err)
{
	return format_read_number(text, &args->newer_than, err);
}

static int read_view(struct args *args, const char *text, struct error *err)
{
	static const char *const words[TOP_N] = {
		"processes", "users", "tensors", "limbo", "pools", "comms"};
	int r = read_word(text, words, TOP_N,
			  "processes, users, tensors, limbo, pools or comms",
			  err);

	if (r < 0)
		return r;
	args->view = (enum top_view)r;
	return 0;
}

static int read_column(struct args *args, const char *text, struct error *err)
{
	(void)err;
	args->column = text;
	return 0;
}

static int read_delay(struct args *args, const char *text, struct error *err)
{
	uint64_t ms;
	int r = format_read_time(text, &ms, err);

	if (r < 0)
		return r;
	if (ms < 100 || ms > 3600000)
		return error_set(err, -EINVAL,
				 "'%s' is not a time from 100ms to 1h", text);
	args->delay_ms = (uint32_t)ms;
	return 0;
}

/* clang-format off */
static const struct args_option rows[N_ARGS] = {
	[ARG_HELP] = {"help", 'h', NULL, NULL, "show this", NULL},
	[ARG_VERSION] = {"version", 0, NULL, NULL, "show the version", NULL},
	[ARG_SOCKET] = {"socket", 0, "PATH", read_socket,
		"socket of the broker, if it is not in the usual place", NULL},
	[ARG_JSON] = {"json", 0, NULL, NULL, "print one JSON document", NULL},
	[ARG_QUIET] = {"quiet", 'q', NULL, NULL, "show no progress", NULL},
	[ARG_TIMEOUT] = {"timeout", 0, "T", read_timeout,
		"maximum time to wait: ms, or 5s, 2m, 1h, forever", NULL},
	[ARG_PREFIX] = {"prefix", 0, "NAME/", read_prefix,
		"name of the bundle; names of tensors begin with it", NULL},
	[ARG_REPLACE] = {"replace", 0, NULL, NULL, "replace what is there", NULL},
	[ARG_MODE] = {"mode", 0, "MODE", read_mode,
		"permissions: 0600 (default) to 0666", NULL},
	[ARG_GROUP] = {"group", 0, "G", read_group,
		"group of the memory: one of your groups", NULL},
	[ARG_TTL] = {"ttl", 0, "T", read_ttl, "remove the name after T", NULL},
	[ARG_EVICTABLE] = {"evictable", 0, NULL, NULL,
		"let the broker drop it when memory is short", NULL},
	[ARG_OUTPUT] = {"output", 'o', "FILE", read_output,
		"FILE.npy, FILE.safetensors or FILE.raw; - is raw to "
		"standard output", NULL},
	[ARG_CAST] = {"cast", 0, "f32", read_cast,
		"turn f16, bf16 and 8-bit floats into f32, exactly", "f32"},
	[ARG_NAME] = {"name", 0, "NAME", read_name, "name to publish under", NULL},
	[ARG_DTYPE] = {"dtype", 0, "D", read_dtype,
		"dtype of a .raw file, such as f32",
		"bool u8 i8 u16 i16 u32 i32 u64 i64 f16 bf16 f32 f64 f8_e4m3 "
		"f8_e5m2 c64 c128"},
	[ARG_SHAPE] = {"shape", 0, "S", read_shape,
		"shape of a .raw file, such as 4096,128", NULL},
	[ARG_COUNT] = {"count", 'c', "N", read_count,
		"number of round trips, or of events", NULL},
	[ARG_FAITHFUL] = {"faithful", 0, NULL, NULL,
		"make the same plans as PyTorch's passes", NULL},
	[ARG_BUCKET_MODE] = {"mode", 0, "M", read_bucket_mode,
		"default, custom_ops, custom_ops_multidtype or coalesced",
		"default custom_ops custom_ops_multidtype coalesced"},
	[ARG_GATHER_MODE] = {"gather-mode", 0, "M", read_gather_mode,
		"mode of all-gathers only",
		"default custom_ops custom_ops_multidtype coalesced"},
	[ARG_REDUCE_MODE] = {"reduce-mode", 0, "M", read_reduce_mode,
		"mode of reduce-scatters and all-reduces only",
		"default custom_ops custom_ops_multidtype coalesced"},
	[ARG_CAPS] = {"cap-mb", 0, "N[,N]", read_caps,
		"MiB of the first bucket of a run, the second, ... (2000)", NULL},
	[ARG_GATHER_CAPS] = {"gather-cap-mb", 0, "N[,N]", read_gather_caps,
		"caps of all-gathers only", NULL},
	[ARG_REDUCE_CAPS] = {"reduce-cap-mb", 0, "N[,N]", read_reduce_caps,
		"caps of reduce-scatters and all-reduces only", NULL},
	[ARG_DEVICE] = {"device", 0, "GPU-...", read_device,
		"use this GPU (fsdpctl devices lists them)", NULL},
	[ARG_RESET] = {"reset", 0, NULL, NULL,
		"show the status, then set the maxima to 0", NULL},
	[ARG_LONG] = {"long", 'l', NULL, NULL, "show all columns", NULL},
	[ARG_SORT] = {"sort", 0, "KEY", read_sort,
		"name (default), bytes, age or holders; largest first",
		"name bytes age holders"},
	[ARG_BUNDLES] = {"bundles", 'b', NULL, NULL,
		"list bundles instead of their members", NULL},
	[ARG_BY] = {"by", 0, "KEY", read_by,
		"uid (default), process, bundle or prefix",
		"uid process bundle prefix"},
	[ARG_TREE] = {"prefix", 0, "PREFIX", read_tree,
		"all names that begin with PREFIX, bundles as a whole", NULL},
	[ARG_NEWER_THAN] = {"newer-than", 0, "N", read_newer_than,
		"wait for a version above N", NULL},
	[ARG_VIEW] = {"view", 0, "VIEW", read_view,
		"processes (default), users, tensors, limbo, pools or comms",
		"processes users tensors limbo pools comms"},
	[ARG_COLUMN] = {"sort", 0, "COLUMN", read_column,
		"title of the column to sort by", NULL},
	[ARG_DELAY] = {"delay", 0, "T", read_delay,
		"time between two pages (2s)", NULL},
	[ARG_BATCH] = {"batch", 0, NULL, NULL,
		"print plain text, page after page", NULL},
	[ARG_PAGES] = {"pages", 'n', "N", read_count,
		"end after N pages", NULL},
	[ARG_ROWS] = {"rows", 0, "N", read_rows,
		"print only the first N rows of a page", NULL},
	[ARG_ONCE] = {"once", 0, NULL, NULL,
		"load it only if it is not there; wait if another process does",
		NULL},
	[ARG_CANCEL] = {"cancel", 0, NULL, NULL, "take new sessions again", NULL},
};
/* clang-format on */

void args_init(struct args *args)
{
	*args = (struct args){.mode = 0600,
			      .gid = FSDP_GID_DEFAULT,
			      .count = 10,
			      .delay_ms = 2000};
}

const struct args_option *args_option(enum arg arg)
{
	return &rows[arg];
}

/* Two options may have the same name. The one that `accepts` does not have is
 * hidden; if it has neither, the later one is. */
static bool is_hidden(int arg, uint64_t accepts)
{
	for (int i = 0; i < N_ARGS; i++) {
		if (i == arg || strcmp(rows[i].name, rows[arg].name) != 0)
			continue;
		if (accepts & ARG_BIT(i))
			return true;
		if (!(accepts & ARG_BIT(arg)) && i < arg)
			return true;
	}
	return false;
}

/* Fills the tables for getopt_long(). The value of a long option is 256 plus
 * its `enum arg`. */
static void fill_tables(uint64_t accepts, struct option *options, char *letters)
{
	for (int i = 0; i < N_ARGS; i++) {
		if (is_hidden(i, accepts))
			continue;
		*options++ = (struct option){
			.name = rows[i].name,
			.has_arg =
				rows[i].value ? required_argument : no_argument,
			.val = 256 + i};
		if (!rows[i].letter)
			continue;
		*letters++ = rows[i].letter;
		if (rows[i].value)
			*letters++ = ':';
	}
	*options = (struct option){0};
	*letters = '\0';
}

static int find_arg(int value)
{
	for (int i = 0; i < N_ARGS; i++) {
		if (value == 256 + i || (value && value == rows[i].letter))
			return i;
	}
	return -1;
}

/* Refuses an option as it was written. `value` is that of getopt_long(). */
static int refuse_other(int value, const char *command, struct error *err)
{
	if (value < 256)
		return error_set(err, -EINVAL, "%s has no option -%c", command,
				 value);
	return error_set(err, -EINVAL, "%s has no option --%s", command,
			 rows[value - 256].name);
}

static int take(struct args *args, int value, const char *text,
		const char *command, uint64_t accepts, struct error *err)
{
	int arg = find_arg(value);
	int r;

	if (!(accepts & ARG_BIT(arg)))
		return refuse_other(value, command, err);
	args->given |= ARG_BIT(arg);
	if (!rows[arg].read)
		return 0;
	r = rows[arg].read(args, text, err);
	if (r < 0)
		return error_wrap(err, r, "--%s", rows[arg].name);
	return 0;
}

/* Says why getopt_long() refused the last word. */
static int refuse(int value, char **argv, struct error *err)
{
	const char *word = argv[optind - 1];

	if (value == ':')
		return error_set(err, -EINVAL, "%s needs a value", word);
	if (optopt >= 256)
		return error_set(err, -EINVAL, "--%s takes no value",
				 rows[optopt - 256].name);
	if (optopt)
		return error_set(err, -EINVAL, "%s has no option -%c", argv[0],
				 optopt);
	return error_set(err, -EINVAL, "%s has no option %s", argv[0], word);
}

int args_parse(struct args *args, int argc, char **argv, uint64_t accepts,
	       bool is_before_verb, struct error *err)
{
	struct option options[N_ARGS + 1];
	/* '+' ends the parsing at the first operand. ':' makes getopt_long()
	 * return ':' for a missing value. */
	char letters[2 * N_ARGS + 4] = "+:";
	int value, r;

	fill_tables(accepts, options, letters + (is_before_verb ? 2 : 1));
	if (!is_before_verb)
		letters[0] = ':';
	optind = 0;
	opterr = 0;
	for (;;) {
		value = getopt_long(argc, argv, letters, options, NULL);
		if (value == -1)
			break;
		if (value == ':' || value == '?')
			return refuse(value, argv, err);
		r = take(args, value, optarg, argv[0], accepts, err);
		if (r < 0)
			return r;
	}
	args->operands = argv + optind;
	args->n_operands = (size_t)(argc - optind);
	return 0;
}

void args_print_help(uint64_t accepts, FILE *file)
{
	for (int i = 0; i < N_ARGS; i++) {
		char option[64];

		if (!(accepts & ARG_BIT(i)))
			continue;
		if (rows[i].letter)
			snprintf(option, sizeof(option), "-%c, --%s",
				 rows[i].letter, rows[i].name);
		else
			snprintf(option, sizeof(option), "    --%s",
				 rows[i].name);
		fprintf(file, "  %s %-*s %s\n", option,
			20 - (int)strlen(option),
			rows[i].value ? rows[i].value : "", rows[i].help);
	}
}
