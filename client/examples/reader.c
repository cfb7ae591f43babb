/*
 * Reads a bundle and checks every byte of it, in the place of an inference
 * worker that reads a model. scripts/make-model makes the model's file.
 *
 *   reader [--socket PATH] BUNDLE/
 *
 * Gets the bundle, checks it, and then reads commands from standard input:
 *
 *   check    check the same tensors again, which must not have changed
 *   reload   release them, and get and check the newest version
 *   quit     exit, as at the end of input
 *
 * The exit status is 1 if a byte is wrong or a call fails.
 */
#include <fsdp.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define FACTOR UINT64_C(0xd1342543de82ef95)
#define GOLDEN UINT64_C(0x9e3779b97f4a7c15)

struct reader {
	struct fsdp_client *client;
	const char *bundle;
	struct fsdp_tensor **tensors;
	size_t n;
	uint64_t size; /* sum of the tensors' sizes, in bytes */
};

static double now_ms(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec * 1e3 + (double)t.tv_nsec / 1e6;
}

static int complain(const char *what)
{
	fprintf(stderr, "reader %d: %s: %s\n", getpid(), what, fsdp_error());
	return -1;
}

static int attach(struct reader *reader)
{
	double start = now_ms();
	struct fsdp_info info = {.struct_size = sizeof(info)};
	int r;

	r = fsdp_bundle_get(reader->client, reader->bundle, NULL,
			    &reader->tensors, &reader->n);
	if (r < 0)
		return complain("attach");
	start = now_ms() - start;
	reader->size = 0;
	for (size_t i = 0; i < reader->n; i++) {
		fsdp_tensor_info(reader->tensors[i], &info);
		reader->size += info.size;
	}
	printf("reader %d: attached version %" PRIu64 " of %s (%zu tensors, "
	       "%" PRIu64 " MiB) in %.2f ms\n",
	       getpid(), info.version, reader->bundle, reader->n,
	       reader->size >> 20, start);
	return 0;
}

static void free_tensors(struct reader *reader)
{
	for (size_t i = 0; i < reader->n; i++)
		fsdp_free(reader->tensors[i]);
	free(reader->tensors);
	reader->tensors = NULL;
	reader->n = 0;
}

/* Return the tensor's name in the model's file, without the name of the
 * bundle. */
static const char *member_name(const struct reader *reader,
			       const struct fsdp_info *info)
{
	return info->name + strlen(reader->bundle);
}

static uint64_t first_word(const char *name, uint64_t version)
{
	uint64_t key = UINT64_C(0xcbf29ce484222325);

	for (; *name; name++)
		key = (key ^ (uint8_t)*name) * UINT64_C(0x100000001b3);
	return (key ^ version * GOLDEN) * FACTOR;
}

static bool is_intact(const struct fsdp_tensor *tensor, uint64_t size,
		      uint64_t word)
{
	const char *bytes = fsdp_data(tensor);
	const uint64_t *words = fsdp_data(tensor);
	uint64_t wrong = 0;
	size_t n = size / sizeof(word);

	for (size_t i = 0; i < n; i++, word += FACTOR)
		wrong |= words[i] ^ word;
	return wrong == 0 && memcmp(bytes + n * sizeof(word), &word,
				    size % sizeof(word)) == 0;
}

/* Return the version that the contents claim; 0: there is no such tensor. */
static uint64_t content_version(const struct reader *reader)
{
	struct fsdp_info info = {.struct_size = sizeof(info)};

	for (size_t i = 0; i < reader->n; i++) {
		fsdp_tensor_info(reader->tensors[i], &info);
		if (strcmp(member_name(reader, &info), "version") == 0)
			return *(const uint64_t *)fsdp_data(reader->tensors[i]);
	}
	return 0;
}

static int check(const struct reader *reader)
{
	uint64_t version = content_version(reader);
	double start = now_ms();
	struct fsdp_info info = {.struct_size = sizeof(info)};

	for (size_t i = 0; i < reader->n; i++) {
		const char *name;

		fsdp_tensor_info(reader->tensors[i], &info);
		name = member_name(reader, &info);
		if (strcmp(name, "version") != 0 &&
		    !is_intact(reader->tensors[i], info.size,
			       first_word(name, version))) {
			fprintf(stderr, "reader %d: %s is not as written\n",
				getpid(), info.name);
			return -1;
		}
	}
	printf("reader %d: all bytes are those of version %" PRIu64
	       " (%.0f ms)\n",
	       getpid(), version, now_ms() - start);
	return 0;
}

static int obey(struct reader *reader, const char *line)
{
	int r;

	if (strcmp(line, "check\n") == 0)
		return check(reader);
	if (strcmp(line, "reload\n") != 0) {
		fprintf(stderr, "reader: say check, reload or quit\n");
		return -1;
	}
	free_tensors(reader);
	r = attach(reader);
	return r < 0 ? r : check(reader);
}

static int run(struct reader *reader)
{
	char line[64];
	int r;

	r = attach(reader);
	if (r < 0)
		return r;
	r = check(reader);
	while (r == 0 && fgets(line, sizeof(line), stdin) &&
	       strcmp(line, "quit\n") != 0)
		r = obey(reader, line);
	free_tensors(reader);
	return r;
}

int main(int argc, char **argv)
{
	struct fsdp_connect_options options = {0};
	struct reader reader = {0};
	int r;

	if (argc == 4 && strcmp(argv[1], "--socket") == 0) {
		options.path = argv[2];
		argv += 2;
		argc -= 2;
	}
	if (argc != 2 || argv[1][0] == '-') {
		fprintf(stderr, "Usage: reader [--socket PATH] BUNDLE/\n");
		return 2;
	}
	setvbuf(stdout, NULL, _IOLBF, 0); /* tests wait for each line */
	reader.bundle = argv[1];
	r = fsdp_connect(&options, &reader.client);
	if (r < 0) {
		complain("connect");
		return 1;
	}
	r = run(&reader);
	fsdp_close(reader.client);
	return r < 0 ? 1 : 0;
}
