# All rules of the language, except for the names of files: the module has a file for each subject. The rules of AWS are a
# plugin of its own, which no Go module proxy has: `terraform validate` and the tests check types and values.
plugin "terraform" {
  enabled = true
  preset  = "all"
}

rule "terraform_standard_module_structure" {
  enabled = false
}
