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

// Package rollback decides whether the pods of a release come up, what is rolled back, and which pods are evicted, by pure functions of
// what was observed and of the time.
//
//	quarantine.go history.go versions that are denied, and versions to go back to
//	start.go                 whether the pods of a release come up
//	limit.go                 how many rollbacks there may be
//	rollback.go              what is rolled back
//	fate.go evict.go         versions that were left, and pods of them that are stuck
package rollback
