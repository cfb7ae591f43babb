#include "proto/std_fds.h"

#include <fcntl.h>
#include <unistd.h>

void std_fds_open(void)
{
	/* open() returns the lowest number that is free */
	for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; fd++) {
		int flags = fd == STDIN_FILENO ? O_WRONLY : O_RDONLY;

		if (fcntl(fd, F_GETFD) < 0)
			(void)open("/dev/null", flags);
	}
}
