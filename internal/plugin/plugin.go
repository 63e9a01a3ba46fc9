/*
Copyright The AlterShield Authors.

Licensed under the Apache License, Version 2.0 (the "License");
you may not use this file except in compliance with the License.
You may obtain a copy of the License at

    http://www.apache.org/licenses/LICENSE-2.0

Unless required by applicable law or agreed to in writing, software
distributed under the License is distributed on an "AS IS" BASIS,
WITHOUT WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.
See the License for the specific language governing permissions and
limitations under the License.
*/

// Package plugin is kubectl altershield: it shows the operator's objects, and writes the requests of a user. It has the rights of
// its user, and stores nothing of its own in the cluster. Pure functions decide what a command shows or does, from what it read.
//
// Each file uses only files that are named before it:
//
//	output.go text.go flags.go        text for terminals, formats for programs
//	connection.go commands.go         the cluster, and commands as the user types them
//	target.go records.go reader.go    one workload, its records, reads by owner
//	watch.go operator.go change.go    waiting, the operator's settings, writes with a dry run
//	remembered.go snapshot.go         all that is read of a workload
//	census.go                         all that is read of many workloads
//	finding.go denied.go down.go      what is wrong
//	steps.go                          next steps, by the catalog
//	findings_denied.go findings.go    all that is wrong with a workload
//	complete.go show.go               completion; printing, once or at each change
//	status.go tree.go overview.go     status of one workload and of many
//	history.go wait.go wait_decide.go and the other commands, one a file
//	root.go                           all commands
package plugin
