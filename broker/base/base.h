/*
 * The parts of the broker that all its folders use: the loop, the
 * configuration, and the modules of this folder.
 */
#pragma once
#include "broker/base/account.h"
#include "broker/base/closer.h"
#include "broker/base/config.h"
#include "broker/base/deadline.h"
#include "broker/base/fdstore.h"
#include "broker/base/log.h"
#include "broker/base/loop.h"
#include "broker/base/wake.h"

struct base {
	struct loop loop;
	struct config config;
	struct fdstore fdstore;
	struct closer closer;
	struct accounts accounts;
	struct deadlines deadlines;
	struct wake wake;
};
