module code-execution-sandbox

go 1.26.3
