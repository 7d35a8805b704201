# Writes a C++ source that holds the text of files: kernel headers, for compilers, and tuned
# results. Run as cmake -P at build time: OUTPUT; ROOT and FILES (paths below ROOT, ';' between
# them); HEADER, which declares in NAMESPACE the struct TYPE {name, text}, the array ARRAY and, as
# ARRAYCount without its last s, their number; PREFIX, which is taken off names. The array ends with
# an element that is not counted: FILES may be none.
string(REGEX REPLACE "s$" "Count" counter ${ARRAY})
set(text
  "// Made by cmake/EmbedFiles.cmake.\n#include \"${HEADER}\"\n\nnamespace ${NAMESPACE} {\n\n")
string(APPEND text "const ${TYPE} ${ARRAY}[] = {\n")
set(count 0)
foreach(file ${FILES})
  file(READ ${ROOT}/${file} content)
  string(REGEX REPLACE "^${PREFIX}" "" name "${file}")
  string(APPEND text "    {\"${name}\", ")
  # Compilers accept string literals of up to 64 KiB; adjacent ones are joined.
  string(LENGTH "${content}" length)
  set(at 0)
  while(at LESS length)
    string(SUBSTRING "${content}" ${at} 12000 piece)
    string(APPEND text "R\"~~~(${piece})~~~\"\n")
    math(EXPR at "${at} + 12000")
  endwhile()
  string(APPEND text "},\n")
  math(EXPR count "${count} + 1")
endforeach()
string(APPEND text
  "    {nullptr, nullptr}};\nconst int ${counter} = ${count};\n\n}  // namespace ${NAMESPACE}\n")
file(WRITE ${OUTPUT} "${text}")
