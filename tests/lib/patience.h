/*
 * For how long tests wait for what must happen. Only a failing test waits so
 * long, and it says what it waited for before the time-out of its suite (300 s)
 * ends it.
 */
#pragma once

#define PATIENCE_MS 120000
