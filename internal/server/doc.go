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

// Package server decides which calls to AlterShield Server are made, and when, and about the consequences of its
// answers and verdicts, by pure functions of records and time. internal/altershield has the protocol, and
// internal/verify makes the calls.
//
//	call.go         calls, their answers, and retries
//	ids.go          ids of orders and entries, which a user may have copied into another record
//	origin.go       the change of a release, by annotations of its workload
//	entry.go        the steps of the entry of an order or a batch
//	order_record.go order.go
//	                the order of a release
//	batch_record.go batch_checks.go batch.go
//	                batches, and the checks of policies
//	step.go         the plan of a step
//	ending.go       the ends of orders and entries
//	verdict.go      delivered verdicts
//	condition.go awaited.go
//	                the condition Server of a release, and the steps that it waits for
package server
