/*
 * Functions that stress tests share. These tests do not use Criterion, whose
 * processes do not run under ThreadSanitizer.
 */
#pragma once
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

/* End the process with this line on stderr if the condition is false. */
void check(bool is_true, const char *what);

/* Sleep for a while, so that the other threads fall asleep, too. */
void come_late(void);

/* Start threads; each gets its number, from 0 on, as its data. */
typedef void *thread_fn(void *number);
void start_threads(pthread_t *threads, uint32_t n, thread_fn *fn);
void join_threads(const pthread_t *threads, uint32_t n);

/* This variable stands for the verdict in the state table. Waits read it with
 * the function. */
extern atomic_bool is_over;
bool look_over(const void *unused);
