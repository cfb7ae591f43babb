#include "broker/base/config_file.h"
#include "broker/base/config_assign.h"
#include "broker/base/config_keys.h"
#include "proto/error.h"
#include <errno.h>
#include <ini.h>
#include <stdio.h>
#include <string.h>

struct reading {
	FILE *file;
	struct config *config;
	const char *path;
	unsigned int line;
	int r; /* the first error */
	struct error *err;
};

static void refuse(struct reading *reading, int r, const struct error *cause)
{
	if (reading->r < 0)
		return;
	reading->r = error_set(reading->err, r, "%s:%u: %s", reading->path,
			       reading->line, cause->msg);
}

/* libinih does not report sections without keys, so they are checked here. */
static void check_section(struct reading *reading, const char *line)
{
	struct error cause = ERROR_NULL;
	char name[64];

	line += strspn(line, " \t");
	if (sscanf(line, "[%63[^]]]", name) != 1 || config_is_section(name))
		return;
	error_set(&cause, -EINVAL,
		  "there is no section [%s]; there are [memory], [quota], "
		  "[access] and [prefixes]",
		  name);
	refuse(reading, -EINVAL, &cause);
}

/* Refuses a line whose last character that was read is `last`, unless it ends
 * there: libinih needs the end of each line, and reads a line only up to a byte
 * of 0. */
static int check_end(struct reading *reading, int last, int size)
{
	struct error cause = ERROR_NULL;

	if (last == '\n' || last == EOF)
		return 0;
	if (last == 0)
		error_set(&cause, -EINVAL,
			  "the line has a byte of 0; write the file as text");
	else
		error_set(&cause, -EINVAL,
			  "the line has more than %d bytes; shorten it",
			  size - 2);
	refuse(reading, -EINVAL, &cause);
	return -EINVAL;
}

static char *read_line(char *line, int size, void *data)
{
	struct reading *reading = data;
	int length = 0, last = ' ';

	if (reading->r < 0)
		return NULL;
	while (length < size - 1 && last != '\n') {
		last = getc(reading->file);
		if (last <= 0)
			break;
		line[length++] = (char)last;
	}
	line[length] = '\0';
	if (length == 0 && last == EOF)
		return NULL;
	reading->line++;
	if (check_end(reading, last, size) < 0)
		return NULL;
	check_section(reading, line);
	return line;
}

static int on_value(void *data, const char *section, const char *name,
		    const char *value)
{
	struct reading *reading = data;
	struct error cause = ERROR_NULL;
	int r;

	r = config_assign(reading->config, section, name, value, reading->path,
			  reading->line, &cause);
	if (r < 0)
		refuse(reading, r, &cause);
	return r == 0;
}

static int parse(struct reading *reading)
{
	struct error cause = ERROR_NULL;
	int line = ini_parse_stream(read_line, reading, on_value, reading);

	if (reading->r < 0 || line == 0)
		return reading->r;
	if (line > 0)
		reading->line = (unsigned int)line;
	error_set(&cause, -EINVAL,
		  "the line is neither [section] nor key = value");
	refuse(reading, -EINVAL, &cause);
	return reading->r;
}

int config_file_read(struct config *config, const char *path, struct error *err)
{
	struct reading reading = {.config = config, .path = path, .err = err};
	int r;

	reading.file = fopen(path, "re");
	if (!reading.file)
		return error_set(err, -errno,
				 "cannot read the configuration %s: %s; let "
				 "fsdpd read it, or name another by --config",
				 path, strerrordesc_np(errno));
	r = parse(&reading);
	if (r == 0 && ferror(reading.file))
		r = error_errno(err, -EIO, "cannot read %s", path);
	fclose(reading.file);
	return r;
}
