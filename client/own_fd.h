/*
 * Descriptors that the library keeps. A program may close them without knowing,
 * by closefrom(), and open files of its own under the same numbers. So the
 * library marks its open files, and looks for the mark before it reads, writes,
 * sends or closes by a number, and before it begins to poll the socket. While
 * it waits there it polls again without a look.
 *
 * The mark is the signal of F_SETSIG, which belongs to the open file, and which
 * the kernel uses only for files with O_ASYNC. Only a program that sets the
 * same signal deceives this, or one in which another thread closes the
 * descriptor between the look and the use.
 */
#pragma once
#include <stdbool.h>

/* Mark this open file, the first of a connection. Returns its mark; 0: this
 * kernel keeps no marks, and the functions below take every open file for a
 * marked one. */
int own_fd_mark_first(int fd);
/* Mark another file of the connection. Does nothing if `fd` is negative. */
void own_fd_mark(int fd, int mark);

/* Is it open, and one of the connection's? */
bool own_fd_is(int fd, int mark);
/* Close it if it is. */
void own_fd_close(int fd, int mark);
