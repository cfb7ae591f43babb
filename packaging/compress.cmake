# CPack runs this after it has copied the files, and before it makes packages.
file(GLOB files ${CPACK_TEMPORARY_DIRECTORY}/*/usr/share/man/man*/*
	${CPACK_TEMPORARY_DIRECTORY}/*/usr/share/doc/*/changelog)
execute_process(COMMAND gzip -9n ${files} COMMAND_ERROR_IS_FATAL ANY)
