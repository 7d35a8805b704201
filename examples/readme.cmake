# Each program stands in its page as it is in its file.
cmake_path(GET CMAKE_CURRENT_LIST_DIR PARENT_PATH root)
foreach(shown "README.md|transformer.cpp" "docs/guide/cpp.md|boards.cpp"
        "docs/guide/cpp.md|plan.cpp" "docs/guide/cpp.md|training.cpp"
        "docs/guide/cpp.md|paged_cache.cpp" "docs/guide/c.md|mean.c")
  string(REPLACE "|" ";" shown "${shown}")
  list(GET shown 0 page)
  list(GET shown 1 example)
  file(READ ${root}/${page} text)
  file(READ ${CMAKE_CURRENT_LIST_DIR}/${example} program)
  string(FIND "${text}" "${program}```" at)
  if(at EQUAL -1)
    message(SEND_ERROR "${page} does not show examples/${example} as it is")
  endif()
endforeach()
