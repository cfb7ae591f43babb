/*
 * What a broker in the fuzzer's process asks of the kernel about processes that
 * do not exist, and the keeper of its files: -Wl,--wrap puts the functions of
 * kernel.c in the place of the product's and of libc's.
 */
#pragma once
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

struct fdstore;
struct process;

#define ENSURE(what)                                                           \
	do {                                                                   \
		if (!(what)) {                                                 \
			fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__,     \
				#what);                                        \
			abort();                                               \
		}                                                              \
	} while (0)

/* This process is at the other end of the broker's socket. */
void kernel_set_owner(int sock_fd, const struct process *process);

/* Let the broker's clock be that much ahead. */
void kernel_set_ahead(uint64_t ms);

/* The next storing of a file fails: -EAGAIN means that the keeper is busy. */
void keeper_refuse(int code);

/* Give a new broker copies of all files that are kept. */
void keeper_pass_on(struct fdstore *ret);

void keeper_clear(void);
