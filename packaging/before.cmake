# CPack reads this first. All files of a package have the time of its changelog,
# unless SOURCE_DATE_EPOCH is set.
if(NOT DEFINED ENV{SOURCE_DATE_EPOCH})
	file(STRINGS ${CPACK_CHANGELOG} line REGEX "^ -- " LIMIT_COUNT 1)
	string(REGEX REPLACE "^ -- .*>  " "" date "${line}")
	execute_process(COMMAND date -d "${date}" +%s OUTPUT_VARIABLE epoch
		OUTPUT_STRIP_TRAILING_WHITESPACE COMMAND_ERROR_IS_FATAL ANY)
	set(ENV{SOURCE_DATE_EPOCH} ${epoch})
endif()
