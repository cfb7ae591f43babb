# CPack runs this with the packages that it has made.
execute_process(COMMAND ${CMAKE_CURRENT_LIST_DIR}/repack
	${CPACK_TEMPORARY_DIRECTORY} ${CPACK_PACKAGE_FILES}
	OUTPUT_QUIET COMMAND_ERROR_IS_FATAL ANY)
