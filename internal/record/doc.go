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

// Package record has what the records of a release say, ChangeWorkloads and ChangePods: their names, states, conditions and checks. It
// decides nothing but what is written of a check; packages of decisions share it.
//
//	names.go      names of records
//	states.go     states of releases, batches and orders, verdicts, overrides, and numbers of batches
//	conditions.go conditions, and events
//	checks.go     what checks of policies come to
package record
