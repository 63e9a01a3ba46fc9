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

// Package record reads and writes the records of a release, ChangeWorkloads and ChangePods: their names, states,
// conditions and checks. Packages that decide share it; it only decides the write of a check.
//
//	names.go      names of records
//	states.go     states of releases, batches and orders, verdicts, overrides, and numbers of batches
//	conditions.go conditions, and events
//	checks.go     results of checks of policies
package record
