/* Injected faults. The list is read once, and searched at every call. */
#include "tests/fakes/cuda/fault.h"
#include "tests/fakes/cuda/context.h"
#include "tests/fakes/cuda/device.h"
#include "tests/fakes/cuda/process.h"
#include "tests/fakes/cuda/settings.h"
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define MAX_FAULTS 32

enum action {
	ACTION_RESULT,
	ACTION_KILL,
	ACTION_SLEEP,
	ACTION_LOST,
	ACTION_STICKY,
	ACTION_FAULT,
};

/* Entries without '=' come first. "result" stands for any other word. */
static const struct {
	const char *word;
	enum action action;
} words[] = {
	{"kill", ACTION_KILL},    {"lost", ACTION_LOST},
	{"sleep=", ACTION_SLEEP}, {"sticky=", ACTION_STICKY},
	{"fault=", ACTION_FAULT},
};

static struct fault {
	enum call call;
	unsigned int n;
	bool is_repeated; /* this call and all later ones */
	enum action action;
	unsigned int value;
} faults[MAX_FAULTS];
static int n_faults;

static unsigned int parse_number(const char *text, const char *spec)
{
	char *end;
	unsigned long value = strtoul(text, &end, 10);

	if (end == text || *end)
		settings_refuse("FAKECUDA_FAIL=...%s: \"%s\" is no number",
				spec, text);
	return (unsigned int)value;
}

static enum call parse_call(const char *name, const char *spec)
{
	if (strncmp(name, "cu", 2) == 0)
		name += 2;
	for (unsigned int i = 0; call_name(i); i++) {
		if (strcmp(name, call_name(i)) == 0)
			return i;
	}
	settings_refuse("FAKECUDA_FAIL=...%s: the double has no cu%s", spec,
			name);
}

static void parse_action(struct fault *fault, const char *text,
			 const char *spec)
{
	size_t length;

	for (size_t i = 0; i < sizeof(words) / sizeof(*words); i++) {
		length = strlen(words[i].word);
		if (strncmp(text, words[i].word, length) != 0)
			continue;
		fault->action = words[i].action;
		if (words[i].word[length - 1] == '=')
			fault->value = parse_number(text + length, spec);
		return;
	}
	fault->action = ACTION_RESULT;
	fault->value = parse_number(text, spec);
}

static void parse(char *spec)
{
	char copy[128];
	char *name, *n, *what, *state;
	struct fault *fault;

	if (n_faults == MAX_FAULTS)
		settings_refuse("FAKECUDA_FAIL has more than %d faults",
				MAX_FAULTS);
	snprintf(copy, sizeof(copy), "%s", spec);
	name = strtok_r(copy, ":", &state);
	n = strtok_r(NULL, ":", &state);
	what = strtok_r(NULL, "", &state);
	if (!what)
		settings_refuse("FAKECUDA_FAIL=...%s: FUNCTION:N:WHAT is "
				"wanted",
				spec);
	fault = &faults[n_faults++];
	fault->call = parse_call(name, spec);
	if (n[strlen(n) - 1] == '+') {
		fault->is_repeated = true;
		n[strlen(n) - 1] = 0;
	}
	fault->n = parse_number(n, spec);
	parse_action(fault, what, spec);
}

static void load(void)
{
	char *copy, *spec, *state;

	if (!settings()->fail)
		return;
	copy = strdup(settings()->fail);
	if (!copy)
		settings_refuse("no memory for FAKECUDA_FAIL");
	for (spec = strtok_r(copy, ",", &state); spec;
	     spec = strtok_r(NULL, ",", &state))
		parse(spec);
	free(copy);
}

static void sleep_ms(unsigned int ms)
{
	struct timespec left = {ms / 1000, ms % 1000 * 1000000L};

	while (nanosleep(&left, &left) < 0)
		;
}

/* Injects a fault of the device or of the current context. */
static CUresult injure(const struct fault *fault)
{
	struct context *context;
	CUresult r = CUDA_SUCCESS;

	process_lock();
	context = context_top();
	if (fault->action == ACTION_LOST) {
		device_lose(context ? context->device : 0);
		r = context ? context_check(context) : CUDA_ERROR_UNKNOWN;
	} else if (context) {
		context_fail(context, fault->value);
		if (fault->action == ACTION_STICKY)
			r = fault->value;
	}
	process_unlock();
	return r;
}

static CUresult apply(const struct fault *fault)
{
	switch (fault->action) {
	case ACTION_RESULT:
		return fault->value;
	case ACTION_KILL:
		kill(getpid(), SIGKILL);
		pause(); /* until the signal arrives */
		return CUDA_SUCCESS;
	case ACTION_SLEEP:
		sleep_ms(fault->value);
		return CUDA_SUCCESS;
	case ACTION_LOST:
	case ACTION_STICKY:
	case ACTION_FAULT:
		return injure(fault);
	}
	return CUDA_SUCCESS;
}

CUresult fault_inject(enum call call, unsigned int n)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;
	CUresult r = CUDA_SUCCESS;

	pthread_once(&once, load);
	for (int i = 0; i < n_faults && r == CUDA_SUCCESS; i++) {
		if (faults[i].call == call &&
		    (faults[i].n == n ||
		     (faults[i].is_repeated && faults[i].n < n)))
			r = apply(&faults[i]);
	}
	return r;
}
