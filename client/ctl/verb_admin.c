/* collect, trim, evict, drain and log-level: the verbs of administrators. */
#include "client/ctl/args.h"
#include "client/ctl/broker.h"
#include "client/ctl/document.h"
#include "client/ctl/format.h"
#include "client/ctl/verb.h"
#include "client/fsdp.h"
#include "proto/error.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

/* Prints "3 tensors freed, 1.5 MiB". */
static int report(const struct args *args, const char *noun, const char *done,
		  uint64_t n, uint64_t bytes, struct error *err)
{
	char count[FORMAT_SIZE], size[FORMAT_SIZE];

	if (args_has(args, ARG_JSON))
		return document_print(json_pack("{s:o, s:o}", "count",
						document_number(n), "bytes",
						document_number(bytes)),
				      err);
	printf("%s %s, %s\n", format_count(n, noun, count), done,
	       format_size(bytes, size));
	return 0;
}

static int run_collect(struct fsdp_client *client, const struct args *args,
		       struct error *err)
{
	uint64_t n, bytes;
	int r = fsdp_collect(client, &n, &bytes);

	return r < 0 ? broker_failed(err, r)
		     : report(args, "tensor", "freed", n, bytes, err);
}

static int run_trim(struct fsdp_client *client, const struct args *args,
		    struct error *err)
{
	uint64_t n, bytes;
	int r = fsdp_trim(client, &n, &bytes);

	return r < 0 ? broker_failed(err, r)
		     : report(args, "chunk",
			      n == 1 ? "is being trimmed" : "are being trimmed",
			      n, bytes, err);
}

static int check_evict(const struct args *args, struct error *err)
{
	uint64_t size;
	int r = format_read_size(args->operands[0], &size, err);

	if (r == 0 && size == 0)
		return error_set(err, -EINVAL,
				 "the size to evict must be greater than 0");
	return r;
}

static int run_evict(struct fsdp_client *client, const struct args *args,
		     struct error *err)
{
	uint64_t size = 0, n, bytes;
	int r = format_read_size(args->operands[0], &size, err);

	if (r < 0)
		return r;
	r = fsdp_evict(client, &args->device, size, &n, &bytes);
	return r < 0 ? broker_failed(err, r)
		     : report(args, "tensor", "evicted", n, bytes, err);
}

static int check_drain(const struct args *args, struct error *err)
{
	if (args_has(args, ARG_CANCEL) && args_has(args, ARG_TIMEOUT))
		return error_set(err, -EINVAL,
				 "drain --cancel does not wait: leave "
				 "--timeout out");
	return 0;
}

static int run_drain(struct fsdp_client *client, const struct args *args,
		     struct error *err)
{
	int32_t timeout_ms =
		args_has(args, ARG_TIMEOUT) ? args->timeout_ms : -1;
	int r = args_has(args, ARG_CANCEL) ? fsdp_undrain(client)
					   : fsdp_drain(client, timeout_ms);

	return r < 0 ? broker_failed(err, r) : 0;
}

static const struct {
	const char *name;
	enum fsdp_log_level level;
} levels[] = {{"error", FSDP_LOG_ERROR},
	      {"warning", FSDP_LOG_WARNING},
	      {"info", FSDP_LOG_INFO}};

static int read_level(const char *text, enum fsdp_log_level *ret,
		      struct error *err)
{
	for (size_t i = 0; i < sizeof(levels) / sizeof(*levels); i++) {
		if (strcmp(text, levels[i].name) != 0)
			continue;
		*ret = levels[i].level;
		return 0;
	}
	return error_set(err, -EINVAL,
			 "there is no level '%.32s': they are error, warning "
			 "and info",
			 text);
}

static int check_log_level(const struct args *args, struct error *err)
{
	enum fsdp_log_level level;

	return read_level(args->operands[0], &level, err);
}

static int run_log_level(struct fsdp_client *client, const struct args *args,
			 struct error *err)
{
	enum fsdp_log_level level = FSDP_LOG_INFO;
	int r = read_level(args->operands[0], &level, err);

	if (r < 0)
		return r;
	r = fsdp_log_level(client, level);
	return r < 0 ? broker_failed(err, r) : 0;
}

const struct verb verbs_admin[] = {
	{.name = "collect",
	 .operands = "",
	 .summary =
		 "free the tensors in limbo that processes have released, now",
	 .accepts = ARG_BIT(ARG_JSON),
	 .run = run_collect},
	{.name = "trim",
	 .operands = "",
	 .summary = "return free memory to the kernel, now",
	 .accepts = ARG_BIT(ARG_JSON),
	 .run = run_trim},
	{.name = "evict",
	 .operands = "SIZE",
	 .summary = "drop evictable tensors until SIZE bytes are free",
	 .accepts = ARG_BIT(ARG_DEVICE) | ARG_BIT(ARG_JSON),
	 .n_min = 1,
	 .n_max = 1,
	 .check = check_evict,
	 .run = run_evict},
	{.name = "drain",
	 .operands = "",
	 .summary = "refuse new sessions, and wait until all others have ended",
	 .accepts = ARG_BIT(ARG_TIMEOUT) | ARG_BIT(ARG_CANCEL),
	 .check = check_drain,
	 .run = run_drain},
	{.name = "log-level",
	 .operands = "LEVEL",
	 .summary = "log errors, warnings as well, or everything (info)",
	 .n_min = 1,
	 .n_max = 1,
	 .check = check_log_level,
	 .run = run_log_level},
	{0}};
