/*
 * The protection from the OOM killer that oom_score.c simulates: a value of 0
 * is read as -OOM_SCORE_LESS.
 */
#pragma once

#define OOM_SCORE_LESS 500
