# CPack runs this when all files lie where it packs them.
file(GLOB files ${CPACK_TEMPORARY_DIRECTORY}/*/usr/share/man/man*/*
	${CPACK_TEMPORARY_DIRECTORY}/*/usr/share/doc/*/changelog)
execute_process(COMMAND gzip -9n ${files} COMMAND_ERROR_IS_FATAL ANY)
