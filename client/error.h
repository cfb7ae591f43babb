/*
 * The calling thread's last error, which fsdp_error() shows.
 *
 * Public functions pass it down as their `err`, so a sentence is written once,
 * by whoever knows the cause. It is written on failure only.
 */
#pragma once
#include "proto/error.h"

struct error *error_of_thread(void);
