/*
 * Writes files that appear complete or not at all. The temporary file is in the
 * directory of its target, because rename() does not work across file systems.
 * Symbolic links are resolved first, because rename() would replace the link.
 */
#include "client/ctl/output.h"

#include "client/ctl/interrupt.h"
#include "proto/error.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* The limit of one write(), so that a signal is noticed soon. */
#define PIECE ((size_t)8 << 20)

static int out_of_memory(struct error *err)
{
	return error_nomem(err, "a path");
}

static int open_in_place(const char *path, struct output *output,
			 struct error *err)
{
	if (strcmp(path, "-") == 0)
		output->fd = fcntl(STDOUT_FILENO, F_DUPFD_CLOEXEC, 3);
	else
		output->fd = open(path, O_WRONLY | O_CLOEXEC | O_NOCTTY);
	if (output->fd < 0)
		return error_errno(err, -errno, "cannot open %s", output->name);
	return 0;
}

/* Sets the mode of the file that is replaced, or the one that open() would have
 * given to a new file. */
static int set_mode(int fd, const char *path)
{
	struct stat old;
	mode_t mask;

	if (stat(path, &old) == 0)
		return fchmod(fd, old.st_mode & 0777);
	mask = umask(0);
	umask(mask);
	return fchmod(fd, 0666 & ~mask);
}

/* Makes the temporary file, which only this user may read. */
static int open_beside(struct output *output, struct error *err)
{
	const char *slash = strrchr(output->path, '/');
	int n = slash ? (int)(slash - output->path) + 1 : 0;
	int r;

	/* the name of the target may have as many bytes as a name can have */
	if (asprintf(&output->temp, "%.*s.fsdpctl.%.200s.XXXXXX", n,
		     output->path, output->path + n) < 0) {
		output->temp = NULL;
		return out_of_memory(err);
	}
	interrupt_catch();
	output->fd = mkostemp(output->temp, O_CLOEXEC);
	if (output->fd < 0) {
		r = -errno;
		free(output->temp);
		output->temp = NULL;
		return error_errno(err, r,
				   "cannot create a temporary file for %s in "
				   "its directory",
				   output->name);
	}
	return 0;
}

int output_open_private(const char *path, struct output *ret, struct error *err)
{
	struct output output = {.fd = -1, .path = strdup(path), .name = path};
	int r = output.path ? open_beside(&output, err) : out_of_memory(err);

	if (r < 0) {
		output_close(&output);
		return r;
	}
	*ret = output;
	return 0;
}

int output_open(const char *path, struct output *ret, struct error *err)
{
	struct output output = OUTPUT_NULL;
	struct stat status;
	bool exists;
	int r;

	output.name = strcmp(path, "-") == 0 ? "standard output" : path;
	exists = stat(path, &status) == 0;
	if (strcmp(path, "-") == 0 ||
	    (exists && !S_ISREG(status.st_mode) && !S_ISDIR(status.st_mode))) {
		r = open_in_place(path, &output, err);
	} else if (exists && S_ISDIR(status.st_mode)) {
		r = error_set(err, -EISDIR, "%s is a directory", path);
	} else if (!exists && lstat(path, &status) == 0) {
		r = error_set(err, -ENOENT,
			      "cannot write %s: it is a symbolic link to a "
			      "file that does not exist; remove the link",
			      path);
	} else {
		output.path = exists ? realpath(path, NULL) : strdup(path);
		r = output.path ? open_beside(&output, err)
				: out_of_memory(err);
		if (r == 0 && set_mode(output.fd, output.path) < 0)
			r = error_errno(err, -errno,
					"cannot set the mode of %s", path);
	}
	if (r < 0) {
		output_close(&output);
		return r;
	}
	*ret = output;
	return 0;
}

static int failed(struct output *output, int code, struct error *err)
{
	return error_errno(err, code, "cannot write %s%s", output->name,
			   output->temp ? " (no partial file was left)" : "");
}

int output_write(struct output *output, const void *data, size_t size,
		 struct error *err)
{
	const char *p = data;

	while (size) {
		size_t piece = size < PIECE ? size : PIECE;
		ssize_t n;
		int r = interrupt_check(err);

		if (r < 0)
			return r;
		n = write(output->fd, p, piece);
		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0)
			return failed(output, -errno, err);
		p += n;
		size -= (size_t)n;
	}
	return 0;
}

int output_pack(void *output, const void *data, size_t size, struct error *err)
{
	return output_write(output, data, size, err);
}

int output_commit(struct output *output, struct error *err)
{
	int fd = output->fd;

	if (output->temp && fsync(fd) < 0)
		return failed(output, -errno, err);
	output->fd = -1;
	if (close(fd) < 0)
		return failed(output, -errno, err);
	if (!output->temp)
		return 0;
	if (rename(output->temp, output->path) < 0)
		return error_errno(err, -errno, "cannot rename to %s",
				   output->name);
	free(output->temp);
	output->temp = NULL;
	return 0;
}

void output_close(struct output *output)
{
	if (output->fd >= 0)
		(void)close(output->fd);
	if (output->temp)
		(void)unlink(output->temp);
	free(output->temp);
	free(output->path);
	*output = OUTPUT_NULL;
}
